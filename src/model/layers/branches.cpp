// Branches — y = the outputs of several branches of layers on the same x, concatenated by channels.
//
//        ┌── layers ──┐
//   x ───┼── layers ──┼── y       a branch without layers passes x on (as in a dense block)
//        └────────────┘
//
// With B branches and C channels: if split, branch i gets only channels [i·C/B, (i+1)·C/B) of x.
// If shuffled, channel c of branch i becomes channel c·B + i of y.
//
// Each branch's output is copied into its slice of y immediately. Backward, the branches run in
// reverse order on their slices of dy; dx is the sum. A branch without layers adds its slice of dy.
// If split, each branch writes its part of dx.
#include "src/model/layers/layers.h"

namespace convoy {

class Branches final : public Layer {
 public:
    Branches(const LayerText& text, const Fusion&, Builder& builder)
        : Layer(builder.backend), splits_(text.split), shuffles_(text.shuffle) {
        const int count = int(text.branches.size());
        Shape x = builder.shape;
        if (splits_) builder.check_image(text);
        if (splits_ && x.C % count)
            builder.error(text, "'split yes' cannot divide ", image_text(x), " by ", count,
                          " branches");
        if (splits_) x.C /= count;
        const std::vector<Shape> flat = builder.flat;
        std::vector<Shape> flat_y;  // used if any branch was flattened
        bool flattened = false;
        Shape y, first;
        for (const std::vector<LayerText>& branch : text.branches) {
            builder.shape = x, builder.flat = flat;
            Layers layers = builder.build(branch);
            const Shape own = builder.shape;
            if (branches_.empty()) y = {1, own.H, own.W, 0}, first = own;
            if (own.H != y.H || own.W != y.W || (shuffles_ && own.C != first.C))
                builder.error(text, "a branch ends with ", image_text(own), ", the first with ",
                              image_text(first), "; expected the same height and width",
                              shuffles_ ? ", and the same channels for 'shuffle yes'" : "");
            branches_.push_back({std::move(layers), y.C, own.C, {}, {}});
            y.C += own.C;
            flattened |= !builder.flat.empty();
            if (builder.flat.empty()) builder.flat = {{1, 1, 1, own.C}};
            flat_y.insert(flat_y.end(), builder.flat.begin(), builder.flat.end());
        }
        builder.flat = flattened ? flat_y : std::vector<Shape>();
        if (shuffles_) builder.check_image(text);
        builder.add_line(cat(shuffles_ ? "shuffle of " : "concat of ", count), y);
        y_shape_ = y;
    }

    bool trained() const override {
        return std::any_of(branches_.begin(), branches_.end(),
                           [](const Branch& branch) { return branch.layers.trained(); });
    }

    Value plan_forward(Value x, MemoryPlan& plan, bool training) override {
        x_shape_ = x.shape;
        const Value shared = plan.kept(x, Keep::kValues);  // all branches read it
        for (Branch& branch : branches_) {
            if (splits_) {
                plan.op({x});
                branch.x = plan.make({x.shape.N, x.shape.H, x.shape.W, split_channels()});
            }
            const Value own =
                branch.layers.plan_forward(splits_ ? branch.x : shared, plan, training);
            plan.op({own, y_value_});
            if (!y_value_) y_value_ = plan.make({x.shape.N, y_shape_.H, y_shape_.W, y_shape_.C});
        }
        return y_value_;
    }

    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override {
        Value dx;
        for (size_t i = branches_.size(); i-- > 0;) {
            Branch& branch = branches_[i];
            if (branch.layers.empty() && !splits_) continue;
            if (!needs_dx && !branch.layers.trained()) continue;
            plan.op({dy});
            branch.dy = plan.make({dy.shape.N, dy.shape.H, dy.shape.W, branch.channels});
            const Value own =
                branch.layers.plan_backward(branch.dy, plan, needs_dx, splits_ ? Value() : dx);
            if (dx || splits_) plan.op({dx, own});
            if (!dx && needs_dx) dx = splits_ ? plan.make(x_shape_) : own;
        }
        if (!needs_dx) return {};
        plan.op({dy, dx});
        if (!dx) dx = plan.make(x_shape_);
        return dx_value_ = plan.kept(dx, Keep::kNothing);
    }

    Tensor forward(Tensor x, const Pass& pass) override {
        const Tensor y = y_value_.first(x.N);
        for (size_t i = 0; i < branches_.size(); ++i) {
            Tensor own = x;
            if (splits_) {
                own = branches_[i].x.first(x.N);
                backend_.copy_channels(own, x, int(i) * split_channels());
            }
            copy_part(y, branches_[i].layers.forward(own, pass), i);
        }
        return y;
    }

    Tensor backward(Tensor dy, const Pass& pass, GradListener& listener) override {
        const Tensor dx = dx_value_.first(dy.N);
        bool any = false;  // whether dx has been written
        for (size_t i = branches_.size(); i-- > 0;) {
            Branch& branch = branches_[i];
            if (!branch.dy) continue;
            const Tensor slice = branch.dy.first(dy.N);
            copy_part(slice, dy, i);
            const Tensor own = branch.layers.backward(slice, pass, listener);
            if (dx && splits_)
                backend_.copy_channels(dx, own, int(i) * split_channels());
            else if (dx && any && !branch.layers.adds)
                backend_.add(dx, own);
            any = true;  // the first branch's dx becomes the sum
        }
        if (!dx_value_) return {};
        for (size_t i = 0; i < branches_.size() && !splits_; ++i) {
            if (!branches_[i].layers.empty()) continue;
            copy_part(dx, dy, i, any);
            any = true;
        }
        return dx;
    }

 private:
    struct Branch {
        Layers layers;
        int first, channels;  // of y
        Value x;              // its part of x, if split
        Value dy;             // its slice; empty if it has no backward pass
    };

    int split_channels() const { return x_shape_.C / int(branches_.size()); }

    // to = from (+= if add). One is y or dy, the other has the channels of branch i.
    void copy_part(Tensor to, Tensor from, size_t i, bool add = false) {
        // Shuffled channels of y are groups with one channel of each branch: channel i of more,
        // narrower pixels.
        const int groups = shuffles_ ? y_shape_.C / int(branches_.size()) : 1;
        const auto grouped = [&](Tensor t) {
            return Tensor{t.data, {t.N, t.H, t.W * groups, t.C / groups}, t.type};
        };
        backend_.copy_channels(grouped(to), grouped(from), shuffles_ ? int(i) : branches_[i].first,
                               add);
    }

    const bool splits_, shuffles_;
    std::vector<Branch> branches_;
    Shape x_shape_, y_shape_;
    Value y_value_, dx_value_;
};

const LayerKind kBranches{
    .name = "branches", .may = "split shuffle", .make = make_layer<Branches>, .mark = "|"};

}  // namespace convoy
