// Cost of a run: energy counters on fake powercap trees, and the sums over the machines of a job.
#include "src/run/usage.h"

#include <filesystem>
#include <fstream>

#include "tests/support.h"

namespace convoy {

namespace {

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

}  // namespace

TEST_CASE("rapl: the packages are summed from the start, without their parts or the platform") {
    Powercap tree;
    Rapl rapl(tree.path());
    CHECK(rapl.joules() == 0);
    tree.set("intel-rapl:0", "2005000");
    tree.set("intel-rapl:1", "1005000");
    for (const char* other : {"intel-rapl:0:0", "intel-rapl:0:1", "intel-rapl:7"})
        tree.set(other, "900000000");
    tree.set("intel-rapl-mmio:0", "2005000");
    CHECK(rapl.joules() == doctest::Approx(3));
    tree.set("intel-rapl:0", "1000000");  // from the largest value on to 0
    CHECK(rapl.joules() == doctest::Approx(3 + (262143328850. - 2005000 + 1000000) * 1e-6));
}

TEST_CASE("rapl: without packages, or with one that cannot be read, there is an error") {
    Powercap none(0);
    CHECK_FAILS(Rapl(none.path()), "no CPU package");
    CHECK_THROWS_AS(Rapl(none.folder / "missing"), Error);
    Powercap tree;
    Rapl rapl(tree.path());
    tree.set("intel-rapl:1", "much");
    CHECK_FAILS(rapl.joules(), "energy_uj");
    CHECK_THROWS_AS(Rapl(tree.path()), Error);
}

TEST_CASE("cost: a machine counts once, with the largest value of its ranks") {
    const Amounts all =
        total_cost({{"a", 2, 3.6e6}, {"a", 1, -1}, {"b", 4, 7.2e6}, {"c", 0, -1}}, 100);
    CHECK(all == Amounts{{"cost", 6}, {"kwh", 3}, {"grams_co2e", 300}});
    CHECK(cost_text(all) == "cost 6.00, 300.00 g CO2e, 3.00 kWh");
    CHECK(total_cost({{"a"}, {"b"}}, 100).empty());
    CHECK(cost_text({}) == "");
}

TEST_CASE("cost: what was spent before stays, also when a rank is gone or new") {
    const Amounts before = {{"cost", 5}, {"kwh", 1}};
    // The rank of machine b is new, that of c is gone.
    const Amounts all = total_cost({{"a", 2, -1, before}, {"b", 1, 3.6e6}}, 0);
    CHECK(all == Amounts{{"cost", 8}, {"kwh", 2}});
}

}  // namespace convoy
