// Cost of a run: the sums over the machines of a job.
#include "src/run/usage.h"

#include "tests/support.h"

namespace convoy {

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
