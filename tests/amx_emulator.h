// amx_emulator.h — executes AMX instructions on x86-64 processors without AMX: these raise SIGILL,
// whose handler decodes the instruction, does its work on tiles in memory, and continues behind it.
// So the machine code that runs on a Xeon is tested on every machine. About 1 µs per instruction.
//
//   VEX.0F38   49  LDTILECFG, TILEZERO, TILERELEASE     4B  TILELOADD, TILESTORED     5C  TDPBF16PS
//
// Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2. All tiles are taken to
// have 16 rows of 64 bytes. Other instructions end the process, as without the emulator.
#pragma once

#include <csignal>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <ucontext.h>
#endif

namespace convoy {

class AmxEmulator {
 public:
    AmxEmulator(const AmxEmulator&) = delete;
#if defined(__x86_64__)
    AmxEmulator() {
        struct sigaction action = {};
        action.sa_sigaction = execute;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGILL, &action, &before_);
    }
    ~AmxEmulator() { sigaction(SIGILL, &before_, nullptr); }

 private:
    struct Tile {
        alignas(64) unsigned char rows[16][64];
    };

    static void execute(int, siginfo_t*, void* context) {
        static thread_local Tile tiles[8];
        auto& gregs = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
        constexpr int kRegisters[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                        REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                        REG_R12, REG_R13, REG_R14, REG_R15};
        const auto* at = reinterpret_cast<const unsigned char*>(gregs[REG_RIP]);
        // VEX: 1100'0100, inverted R X B and 00010 (0F 38), W inverted vvvv L pp
        if (at[0] != 0xC4 || (at[1] & 0x1F) != 2) return give_up();
        const bool x = !(at[1] & 0x40), b = !(at[1] & 0x20);
        const int second = ~at[2] >> 3 & 7, prefix = at[2] & 3, opcode = at[3], modrm = at[4];
        const int mod = modrm >> 6, reg = modrm >> 3 & 7, rm = modrm & 7;
        at += 5;
        unsigned char* address = nullptr;
        int64_t stride = 0;
        if (mod != 3) {
            int64_t sum = 0;
            int base = rm;
            if (rm == 4) {
                const int sib = *at++, index = (sib >> 3 & 7) | x << 3;
                base = sib & 7;
                if (index != 4) stride = int64_t(gregs[kRegisters[index]]) << (sib >> 6);
            }
            const bool no_base = mod == 0 && base == 5;
            int32_t displacement = 0;
            if (mod == 1) displacement = int8_t(*at++);
            if (mod == 2 || no_base) std::memcpy(&displacement, at, 4), at += 4;
            if (!no_base) sum = gregs[kRegisters[base | b << 3]];
            if (no_base && rm == 5) sum = int64_t(at);  // relative to the next instruction
            address = reinterpret_cast<unsigned char*>(sum + displacement);
        }
        constexpr int kNone = 0, kF3 = 2, kF2 = 3;
        if (opcode == 0x49 && prefix == kF2 && mod == 3)
            tiles[reg] = {};
        else if (opcode == 0x49 && prefix == kNone)  // configure, release
            std::memset(tiles, 0, sizeof tiles);
        else if (opcode == 0x4B && prefix == kF2 && address)
            for (int i = 0; i < 16; ++i) std::memcpy(tiles[reg].rows[i], address + i * stride, 64);
        else if (opcode == 0x4B && prefix == kF3 && address)
            for (int i = 0; i < 16; ++i) std::memcpy(address + i * stride, tiles[reg].rows[i], 64);
        else if (opcode == 0x5C && prefix == kF2 - 1 && mod == 3)
            multiply(tiles[reg], tiles[rm], tiles[second]);
        else
            return give_up();
        gregs[REG_RIP] = greg_t(at);
    }
    // sums += left·right, left of 16 rows × 32 numbers, right of 16 pairs of rows × 16 columns.
    static void multiply(Tile& sums, const Tile& left, const Tile& right) {
        const auto number = [](const unsigned char* bytes) {
            const uint32_t bits = uint32_t(bytes[0]) << 16 | uint32_t(bytes[1]) << 24;
            float value;
            std::memcpy(&value, &bits, 4);
            return value;
        };
        for (int m = 0; m < 16; ++m)
            for (int n = 0; n < 16; ++n) {
                float sum;
                std::memcpy(&sum, sums.rows[m] + 4 * n, 4);
                float even = 0, odd = 0;
                for (int k = 0; k < 16; ++k) {
                    even += number(left.rows[m] + 4 * k) * number(right.rows[k] + 4 * n);
                    odd += number(left.rows[m] + 4 * k + 2) * number(right.rows[k] + 4 * n + 2);
                }
                sum += even + odd;
                std::memcpy(sums.rows[m] + 4 * n, &sum, 4);
            }
    }
    static void give_up() { std::signal(SIGILL, SIG_DFL); }  // and the instruction is tried again

    struct sigaction before_ = {};
#else
    AmxEmulator() = default;
#endif
};

}  // namespace convoy
