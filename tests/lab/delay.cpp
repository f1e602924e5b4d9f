// delay.cpp — virtual hosts on one machine whose network has a delay, for kernels without netem.
//
//   g++ -std=c++20 -O2 -o /tmp/delay tests/lab/delay.cpp
//   /tmp/delay 64 1 -- ./trainer bench allreduce --coord 10.78.0.1:29400 --open
//
// Runs the command once per host: in a network namespace of its own, with the address 10.78.0.N+1,
// and CONVOY_RANK and CONVOY_WORLD in its environment. Each namespace has a TUN device; this
// process hands every packet on after the delay (in ms, one way). Needs root.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

using Clock = std::chrono::steady_clock;

static void check(bool is_good, const char* what) {
    if (is_good) return;
    std::perror(what);
    std::_Exit(1);
}

static void set_address(ifreq& request, int sockets, unsigned long what, uint32_t address) {
    sockaddr_in in{};
    in.sin_family = AF_INET, in.sin_addr.s_addr = htonl(address);
    std::memcpy(&request.ifr_addr, &in, sizeof in);
    check(ioctl(sockets, what, &request) == 0, "address");
}

static void bring_up(const char* name, int sockets) {
    ifreq request{};
    std::strcpy(request.ifr_name, name);
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    check(ioctl(sockets, SIOCSIFFLAGS, &request) == 0, "up");
}

// Moves this process to a network of its own. Returns the descriptor of its device.
static int enter(int host) {
    check(unshare(CLONE_NEWNET) == 0, "unshare");
    const int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    const int sockets = socket(AF_INET, SOCK_DGRAM, 0);
    ifreq request{};
    std::strcpy(request.ifr_name, "eth0");
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    check(tun >= 0 && ioctl(tun, TUNSETIFF, &request) == 0, "/dev/net/tun");
    set_address(request, sockets, SIOCSIFADDR, 0x0A4E0000u + uint32_t(host) + 1);
    set_address(request, sockets, SIOCSIFNETMASK, 0xFFFF0000u);
    request.ifr_mtu = 9000;  // fewer packets for this process
    check(ioctl(sockets, SIOCSIFMTU, &request) == 0, "mtu");
    bring_up("eth0", sockets), bring_up("lo", sockets);
    close(sockets);
    return tun;
}

static void give(int to, int descriptor) {
    char byte = 0, space[CMSG_SPACE(sizeof descriptor)] = {};
    iovec data{&byte, 1};
    msghdr message{};
    message.msg_iov = &data, message.msg_iovlen = 1;
    message.msg_control = space, message.msg_controllen = sizeof space;
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
    check(sendmsg(to, &message, 0) == 1, "sendmsg");
}

static int take(int from) {
    char byte = 0, space[CMSG_SPACE(sizeof(int))] = {};
    iovec data{&byte, 1};
    msghdr message{};
    message.msg_iov = &data, message.msg_iovlen = 1;
    message.msg_control = space, message.msg_controllen = sizeof space;
    check(recvmsg(from, &message, 0) == 1, "recvmsg");
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

int main(int argc, char** argv) {
    if (argc < 5 || std::strcmp(argv[3], "--") != 0) {
        std::fprintf(stderr, "usage: delay HOSTS MS -- COMMAND...\n");
        return 2;
    }
    const int hosts = std::atoi(argv[1]);
    const auto delay = std::chrono::microseconds(int64_t(1000 * std::atof(argv[2])));
    std::vector<int> devices;
    for (int host = 0; host < hosts; ++host) {
        int pair[2];
        check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
        if (fork() == 0) {
            const int device = enter(host);
            give(pair[1], device);
            close(device);
            setenv("CONVOY_RANK", std::to_string(host).c_str(), 1);
            setenv("CONVOY_WORLD", std::to_string(hosts).c_str(), 1);
            execvp(argv[4], argv + 4);
            check(false, argv[4]);
        }
        devices.push_back(take(pair[0]));
        fcntl(devices.back(), F_SETFD, FD_CLOEXEC);
        close(pair[0]), close(pair[1]);
    }
    const int poll = epoll_create1(0);
    for (int host = 0; host < hosts; ++host) {
        epoll_event event{};
        event.events = EPOLLIN, event.data.fd = devices[size_t(host)];
        check(epoll_ctl(poll, EPOLL_CTL_ADD, event.data.fd, &event) == 0, "epoll");
    }
    struct Packet {
        Clock::time_point due;
        int to;
        std::string bytes;
    };
    std::deque<Packet> under_way;
    for (int running = hosts; running > 0;) {
        while (waitpid(-1, nullptr, WNOHANG) > 0) --running;
        timespec patience{0, 100'000'000};
        if (!under_way.empty()) {
            const auto left = std::max<Clock::duration>(under_way.front().due - Clock::now(), {});
            patience.tv_nsec = std::chrono::nanoseconds(left).count() % 1'000'000'000;
        }
        epoll_event events[64];
        const int ready = epoll_pwait2(poll, events, 64, &patience, nullptr);
        for (int i = 0; i < ready; ++i) {
            char packet[9100];
            ssize_t n;
            while ((n = read(events[i].data.fd, packet, sizeof packet)) >= 20) {
                const auto* to = reinterpret_cast<const unsigned char*>(packet) + 16;
                const int host = to[2] * 256 + to[3] - 1;
                if (packet[0] >> 4 == 4 && host >= 0 && host < hosts)
                    under_way.push_back({Clock::now() + delay, host, {packet, size_t(n)}});
            }
        }
        for (const auto now = Clock::now(); !under_way.empty() && under_way.front().due <= now;
             under_way.pop_front()) {
            const Packet& packet = under_way.front();
            [[maybe_unused]] const auto lost =
                write(devices[size_t(packet.to)], packet.bytes.data(), packet.bytes.size());
        }
    }
}
