// Energy counters on fake powercap trees and a mock of NVML, and the sums over the machines of a
// job.
#include "src/run/energy.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "src/run/job_cost.h"
#include "tests/support.h"

namespace convoy {

namespace {

constexpr const char* kGpu = "GPU-00000000-1111-2222-3333-444444444444";

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

// A tree as of a machine with two packages.
struct Powercap {
    explicit Powercap(int packages = 2) {
        zone("intel-rapl", "", "");  // the control type, which is no zone
        for (int i = 0; i < packages; ++i) zone(cat("intel-rapl:", i), cat("package-", i), "5000");
        zone("intel-rapl:0:0", "core", "1000");
        zone("intel-rapl:0:1", "dram", "1000");
        zone("intel-rapl:7", "psys", "1000");
        zone("intel-rapl-mmio:0", "package-0", "5000");
    }
    void zone(const std::string& name, const std::string& label, const std::string& energy) {
        std::filesystem::create_directories(folder / name);
        write(folder / (name + "/name"), label + "\n");
        write(folder / (name + "/max_energy_range_uj"), "262143328850\n");
        set(name, energy);
    }
    void set(const std::string& name, const std::string& energy) {
        write(folder / (name + "/energy_uj"), energy + "\n");
    }
    std::string path() const { return folder / "."; }
    TempDir folder;
};

EnergySource packages_of(const std::string& powercap) {
    return EnergySource([&] { return cpu_packages(powercap); });
}

void check_failed(EnergySource& source, const std::string& why) {
    const std::string failure = source.take_failure();
    CAPTURE(failure);
    CHECK(failure.find(why) != std::string::npos);
    source.read();
    CHECK(source.take_failure() == "");  // said once
    CHECK(source.joules() == -1);
}

// A library with the three functions; it counts the millijoules of the file `counter`, and a file
// that is not there is an error.
std::string build_nvml(const TempDir& folder, const std::string& counter) {
    write(folder / "nvml.c",
          cat("#include <stdio.h>\n#include <string.h>\n",  //
              "static int ready;\n",                        //
              "int nvmlInit_v2(void) { ready = 1; return 0; }\n",
              "int nvmlDeviceGetHandleByUUID(const char* u, void** d) {\n",
              "  if (!ready) return 1;\n", "  if (strcmp(u, \"", kGpu, "\")) return 6;\n",
              "  *d = &ready; return 0; }\n", "int nvmlDeviceGetTotalEnergyConsumption(void* d,\n",
              "    unsigned long long* mj) {\n", "  FILE* f = d == &ready ? fopen(\"", counter,
              "\", \"r\") : 0;\n", "  if (!f) return 3;\n",
              "  int n = fscanf(f, \"%llu\", mj); fclose(f);\n", "  return n == 1 ? 0 : 999; }\n",
              "int nvmlDeviceGetUtilizationRates(void* d, unsigned* percents) {\n",
              "  percents[0] = 40; percents[1] = 7; return d == &ready ? 0 : 1; }\n",
              "int nvmlDeviceGetMemoryInfo(void* d, unsigned long long* bytes) {\n",
              "  bytes[0] = 9; bytes[1] = 4; bytes[2] = 5; return d == &ready ? 0 : 1; }\n"));
    const std::string library = folder / "libnvml.so";
    REQUIRE(std::system(cat("cc -shared -fPIC -o ", library, " ", folder / "nvml.c").c_str()) == 0);
    return library;
}

}  // namespace

TEST_CASE("energy: the packages are summed from the start, without their parts or the platform") {
    Powercap tree;
    EnergySource source = packages_of(tree.path());
    CHECK(source.take_failure() == "");
    CHECK(source.joules() == 0);
    tree.set("intel-rapl:0", "2005000");
    tree.set("intel-rapl:1", "3005000");
    for (const char* other :
         {"intel-rapl:0:0", "intel-rapl:0:1", "intel-rapl:7", "intel-rapl-mmio:0"})
        tree.set(other, "99000000");
    source.read();
    CHECK(source.joules() == doctest::Approx(5));
    source.read();  // nothing used since
    CHECK(source.joules() == doctest::Approx(5));
    tree.set("intel-rapl:1", "4005000");
    source.read();
    CHECK(source.joules() == doctest::Approx(6));
}

TEST_CASE("energy: a counter that starts again at 0 goes on from its largest value") {
    Powercap tree(1);
    tree.set("intel-rapl:0", "262143000000");
    EnergySource source = packages_of(tree.path());
    tree.set("intel-rapl:0", "1000000");
    source.read();
    CHECK(source.joules() == doctest::Approx(0.32885 + 1));
    tree.set("intel-rapl:0", "2000000");
    source.read();
    CHECK(source.joules() == doctest::Approx(0.32885 + 2));
}

TEST_CASE("energy: without packages, or with one that cannot be read, none is counted") {
    SUBCASE("no powercap") {
        EnergySource source = packages_of("/nowhere/powercap");
        check_failed(source,
                     "no CPU package is listed in /nowhere/powercap (No such file or directory)");
    }
    SUBCASE("no package among the zones") {
        Powercap tree(0);
        EnergySource source = packages_of(tree.path());
        check_failed(source, "no CPU package is listed in");
    }
    SUBCASE("garbage") {
        for (const char* garbage : {"watt", "-5", "12 joules", "1e9", "99999999999999999999"}) {
            Powercap tree;
            tree.set("intel-rapl:1", garbage);
            EnergySource source = packages_of(tree.path());
            check_failed(source, cat("energy_uj holds '", garbage, "' instead of a whole"));
        }
    }
    SUBCASE("an empty file") {
        Powercap tree;
        write(tree.folder / "intel-rapl:1/energy_uj", "");
        EnergySource source = packages_of(tree.path());
        check_failed(source, "energy_uj: it is empty");
    }
    SUBCASE("no range") {
        Powercap tree;
        std::filesystem::remove(tree.folder / "intel-rapl:1/max_energy_range_uj");
        EnergySource source = packages_of(tree.path());
        check_failed(source, "max_energy_range_uj: No such file");
    }
    SUBCASE("a file of root's") {
        Powercap tree;
        chmod((tree.folder / "intel-rapl:1/energy_uj").c_str(), 0);
        chmod(tree.path().c_str(), 0755);
        const bool root = geteuid() == 0;
        if (root) REQUIRE(seteuid(65534) == 0);
        EnergySource source = packages_of(tree.path());
        if (root) REQUIRE(seteuid(0) == 0);
        check_failed(source, "Permission denied");
    }
}

TEST_CASE("energy: a counter that is lost in mid-run takes back what was counted") {
    Powercap tree;
    EnergySource source = packages_of(tree.path());
    SUBCASE("the file vanishes") {
        std::filesystem::remove(tree.folder / "intel-rapl:1/energy_uj");
        source.read();
        check_failed(source, "intel-rapl:1/energy_uj: No such file");
    }
    SUBCASE("it holds garbage") {
        tree.set("intel-rapl:1", "?");
        source.read();
        check_failed(source, "holds '?'");
    }
    SUBCASE("its range was too small to be one") {
        Powercap odd(1);
        write(odd.folder / "intel-rapl:0/max_energy_range_uj", "100");
        EnergySource its_source = packages_of(odd.path());
        odd.set("intel-rapl:0", "7");
        its_source.read();
        check_failed(its_source, "went back from 5000 to 7; its largest is 100");
    }
}

TEST_CASE("energy: a GPU is counted by NVML, and is not known where NVML does not answer") {
    TempDir folder;
    const std::string counter = folder / "millijoules", library = build_nvml(folder, counter);
    write(counter, "7000");
    const GpuUse use = gpu_use(kGpu, library)();
    CHECK(use.busy == 0.4);
    CHECK(use.memory_bytes == 5);
    CHECK_THROWS_AS(gpu_use("GPU-other", library), Error);
    const auto gpu_of = [](const std::string& nvml, const std::string& uuid) {
        return EnergySource([&] { return gpu_counter(uuid, nvml); });
    };
    SUBCASE("counted, until the driver is loaded again") {
        EnergySource source = gpu_of(library, kGpu);
        CHECK(source.take_failure() == "");
        CHECK(source.joules() == 0);
        write(counter, "1000000007500");  // more than 32 bits
        source.read();
        CHECK(source.joules() == doctest::Approx(1e9 + 0.5));
        write(counter, "10");
        source.read();
        check_failed(source, "went back from 1000000007500 to 10");
    }
    SUBCASE("the counter fails in mid-run") {
        EnergySource source = gpu_of(library, kGpu);
        std::filesystem::remove(counter);
        source.read();
        check_failed(source, "nvmlDeviceGetTotalEnergyConsumption ended with status 3");
    }
    const auto refused = [&](const std::string& nvml, const std::string& uuid, const char* why) {
        EnergySource source = gpu_of(nvml, uuid);
        check_failed(source, why);
    };
    SUBCASE("another GPU") { refused(library, "GPU-other", "GetHandleByUUID ended with status 6"); }
    SUBCASE("no library") { refused("libnone.so", kGpu, "libnone.so: cannot open"); }
    SUBCASE("another library") { refused("libm.so.6", kGpu, "libm.so.6 has no function nvmlInit"); }
}

JobCost cost_after(std::span<const RankCost> ranks, double seconds, double grams_per_kwh) {
    std::vector<RankCost> all(ranks.begin(), ranks.end());
    for (RankCost& rank : all) rank.seconds = seconds;
    return job_cost(all, grams_per_kwh);
}

TEST_CASE("job cost: nothing given and nothing measured is nothing said") {
    const RankCost ranks[] = {{.host = "a", .machine = "a"}, {.host = "b", .machine = "b"}};
    const JobCost job = cost_after(ranks, 3600, 400);
    CHECK(job.cost == -1);
    CHECK(job.kwh == -1);
    CHECK(job.grams_co2e == -1);
    CHECK(job.text() == "");
}

TEST_CASE(
    "job cost: a run that goes on adds what was spent before, and says what it does not know") {
    const RankCost rank = {.host = "a", .machine = "a", .price_per_hour = 2, .watts = 500};
    JobCost job = cost_after({&rank, 1}, 3600, 100);
    const auto of = [&](std::map<std::string, double> before) {
        job.before = before;
        return job.text();
    };
    const std::string own =
        "cost 2.00 (2.00 an hour a machine), 0.5 kWh (estimate: 500 W a machine), 50.00 g CO2e, "
        "of processes that ended";
    CHECK(of({{"cost", 1}, {"kwh", 0.25}, {"grams_co2e", 30}}) ==
          own + " cost 1.00 grams_co2e 30.00 kwh 0.25, in all cost 3.00 grams_co2e 80.00 kwh 0.75");
    CHECK(job.sums() ==
          std::map<std::string, double>{{"cost", 3}, {"kwh", 0.75}, {"grams_co2e", 80}});
    CHECK(of({{"cost", 1}}) ==
          own + " cost 1.00 (not known: 0), in all cost 3.00 grams_co2e 50.00 kwh 0.5");
    CHECK(of({}) == own + " (not known: 0), in all cost 2.00 grams_co2e 50.00 kwh 0.5");
    job = {};
    CHECK(of({{"cost", 1}}) == "of processes that ended cost 1.00, in all cost 1.00");
    CHECK(of({}) == "");
}

TEST_CASE("job cost: ranks of one machine count it once, at the largest of what they give") {
    const RankCost ranks[] = {
        {.host = "a", .machine = "a", .price_per_hour = 0.41, .watts = 65, .cpu_joules = -1},
        {.host = "b", .machine = "b", .price_per_hour = 0.41, .watts = 65},
        {.host = "a", .machine = "a", .price_per_hour = 0.3, .watts = 60},
        {.host = "c", .machine = "c", .price_per_hour = 0.41, .watts = 65},
    };
    const JobCost job = cost_after(ranks, 7200, 400);
    CHECK(job.cost == doctest::Approx(3 * 2 * 0.41));
    CHECK(job.kwh == doctest::Approx(3 * 2 * 0.065));
    CHECK(job.grams_co2e == doctest::Approx(3 * 2 * 0.065 * 400));
    CHECK(job.text() ==
          "cost 2.46 (0.41 an hour a machine), 0.39 kWh (estimate: 65 W a machine), "
          "156.00 g CO2e");
}

TEST_CASE("job cost: what is measured wins over --watts, each GPU once") {
    const RankCost ranks[] = {
        {.host = "a",
         .machine = "a",
         .watts = 500,
         .gpu = "GPU-1",
         .cpu_joules = 3.6e6,
         .gpu_joules = 1.8e6},
        {.host = "a",
         .machine = "a",
         .watts = 500,
         .gpu = "GPU-1",
         .cpu_joules = 3.5e6,
         .gpu_joules = 1.7e6},
        {.host = "a",
         .machine = "a",
         .watts = 500,
         .gpu = "GPU-2",
         .cpu_joules = 3.5e6,
         .gpu_joules = 7.2e6},
    };
    const JobCost job = cost_after(ranks, 3600, 0);
    CHECK(job.kwh == doctest::Approx(1 + 0.5 + 2));
    CHECK(job.text() == "3.50 kWh (measured: CPU packages and GPUs)");
}

TEST_CASE("job cost: containers of one machine are paid for each, their energy counts once") {
    RankCost ranks[] = {{.host = "a",
                         .machine = "m",
                         .price_per_hour = 0.5,
                         .watts = 500,
                         .gpu = "GPU-1",
                         .cpu_joules = 3.6e6,
                         .gpu_joules = 1.8e6},
                        {}};
    ranks[1] = ranks[0], ranks[1].host = "b";
    CHECK(cost_after(ranks, 3600, 0).text() ==
          "cost 1.00 (0.5 an hour a machine), 1.50 kWh (measured: CPU packages and GPUs)");
    for (RankCost& rank : ranks) rank.cpu_joules = -1;
    CHECK(cost_after(ranks, 3600, 0).kwh == doctest::Approx(0.5));
}

TEST_CASE("job cost: where a part cannot be read --watts counts for the whole machine") {
    RankCost rank = {
        .host = "a", .machine = "a", .watts = 500, .gpu = "GPU-1", .gpu_joules = 3.6e6};
    CHECK(cost_after({&rank, 1}, 3600, 0).text() == "0.5 kWh (estimate: 500 W a machine)");
    rank.watts = 0;
    CHECK(cost_after({&rank, 1}, 3600, 0).text() == "1.00 kWh (measured: GPUs)");
    rank.cpu_joules = 1.8e6, rank.gpu_joules = -1;
    CHECK(cost_after({&rank, 1}, 3600, 0).text() == "0.5 kWh (measured: CPU packages)");
    rank.watts = 500;
    CHECK(cost_after({&rank, 1}, 7200, 0).text() == "1.00 kWh (estimate: 500 W a machine)");
}

TEST_CASE("job cost: machines that differ are counted by their kind") {
    const RankCost ranks[] = {
        {.host = "a", .machine = "a", .price_per_hour = 1, .cpu_joules = 3.6e6},
        {.host = "b", .machine = "b", .price_per_hour = 0.5, .watts = 100},
        {.host = "c", .machine = "c"}};
    const JobCost job = cost_after(ranks, 1800, 10);
    CHECK(job.cost == doctest::Approx(0.75));
    CHECK(job.price_per_hour == doctest::Approx(0.5));
    CHECK(job.power_source ==
          "estimate: 100 W a machine; measured: CPU packages; not known of 1 of 3 machines");
}

TEST_CASE("job cost: ranks are paid for from when they came, and until they went") {
    const auto rank = [](const char* id, double hours, double joules = -1) {
        const std::string host = std::string(id).substr(0, 1);
        RankCost cost{
            .id = id, .host = host, .machine = host, .price_per_hour = 2, .cpu_joules = joules};
        cost.seconds = 3600 * hours;
        return cost;
    };
    const RankCost first[] = {rank("a", 3, 3.6e6), rank("b", 1, 7.2e6), rank("c", 3)};
    CHECK(job_cost(first, 0).cost == doctest::Approx(14));
    CHECK(cost_of_gone({}, first, 0).empty());
    CHECK(cost_of_gone(first, first, 0).empty());
    // b is lost; c is lost and has begun anew; d has come.
    const RankCost then[] = {rank("a", 4, 4e6), rank("c2", 0.5), rank("d", 0.25)};
    CHECK(cost_of_gone(first, then, 100) == Amounts{{"cost", 8}, {"grams_co2e", 200}, {"kwh", 2}});
    // One of two ranks of a machine is lost: the machine goes on; what it was there before the
    // other came is not counted by that one.
    const RankCost two[] = {rank("a", 3), rank("a2", 3), rank("b", 3), rank("b2", 1)};
    const RankCost left[] = {rank("a", 4), rank("b2", 2)};
    CHECK(cost_of_gone(two, left, 0) == Amounts{{"cost", 4}});
}

}  // namespace convoy
