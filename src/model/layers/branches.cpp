// Branches — y = the outputs of several branches of layers on the same x, concatenated by channels.
//
//        ┌── layers ──┐
//   x ───┼── layers ──┼── y       a branch without layers passes x on (as in a dense block)
//        └────────────┘
//
// Each branch's output is copied into its slice of y immediately. Backward, the branches run in
// reverse order on their slices of dy; dx is the sum. A branch without layers adds its slice of dy.
#include "src/model/layers/layers.h"

namespace convoy {

class Branches final : public Layer {
 public:
    Branches(const LayerText& text, const Fusion&, Builder& builder) : Layer(builder.backend) {
        const Shape x = builder.shape;
        const std::vector<Shape> flat = builder.flat;
        std::vector<Shape> flat_y;  // used if any branch was flattened
        bool flattened = false;
        Shape y;
        for (const std::vector<LayerText>& branch : text.branches) {
            builder.shape = x, builder.flat = flat;
            Layers layers = builder.build(branch);
            const Shape own = builder.shape;
            if (branches_.empty()) y = {1, own.H, own.W, 0};
            if (own.H != y.H || own.W != y.W)
                builder.error(text, "a branch ends with ", image_text(own), ", the first with ",
                              y.H, "x", y.W, "; expected the same height and width");
            branches_.push_back({std::move(layers), y.C, own.C, {}});
            y.C += own.C;
            flattened |= !builder.flat.empty();
            if (builder.flat.empty()) builder.flat = {{1, 1, 1, own.C}};
            flat_y.insert(flat_y.end(), builder.flat.begin(), builder.flat.end());
        }
        builder.flat = flattened ? flat_y : std::vector<Shape>();
        builder.add_line(cat("concat of ", branches_.size()), y);
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
            const Value own = branch.layers.plan_forward(shared, plan, training);
            plan.op({own, y_value_});
            if (!y_value_) y_value_ = plan.make({x.shape.N, y_shape_.H, y_shape_.W, y_shape_.C});
        }
        return y_value_;
    }

    Value plan_backward(Value dy, MemoryPlan& plan, bool needs_dx) override {
        Value dx;
        for (size_t i = branches_.size(); i-- > 0;) {
            Branch& branch = branches_[i];
            if (branch.layers.empty() || !(needs_dx || branch.layers.trained())) continue;
            plan.op({dy});
            branch.dy = plan.make({dy.shape.N, dy.shape.H, dy.shape.W, branch.channels});
            const Value own = branch.layers.plan_backward(branch.dy, plan, needs_dx, dx);
            if (dx) plan.op({dx, own});
            if (!dx) dx = own;
        }
        if (!needs_dx) return {};
        plan.op({dy, dx});
        if (!dx) dx = plan.make(x_shape_);
        return dx_value_ = plan.kept(dx, Keep::kNothing);
    }

    Tensor forward(Tensor x, const Pass& pass) override {
        const Tensor y = y_value_.first(x.N);
        for (Branch& branch : branches_)
            backend_.copy_channels(y, branch.layers.forward(x, pass), branch.first);
        return y;
    }

    Tensor backward(Tensor dy, const Pass& pass, GradListener& listener) override {
        const Tensor dx = dx_value_.first(dy.N);
        bool any = false;  // whether dx has been written
        for (size_t i = branches_.size(); i-- > 0;) {
            Branch& branch = branches_[i];
            if (!branch.dy) continue;
            const Tensor slice = branch.dy.first(dy.N);
            backend_.copy_channels(slice, dy, branch.first);
            const Tensor own = branch.layers.backward(slice, pass, listener);
            if (dx && any && !branch.layers.adds) backend_.add(dx, own);
            any = true;  // the first branch's dx becomes the sum
        }
        if (!dx_value_) return {};
        for (const Branch& branch : branches_) {
            if (!branch.layers.empty()) continue;
            backend_.copy_channels(dx, dy, branch.first, any);
            any = true;
        }
        return dx;
    }

 private:
    struct Branch {
        Layers layers;
        int first, channels;  // of y
        Value dy;             // its slice; empty if it has no backward pass
    };

    std::vector<Branch> branches_;
    Shape x_shape_, y_shape_;
    Value y_value_, dx_value_;
};

const LayerKind kBranches{.name = "branches", .make = make_layer<Branches>, .mark = "|"};

}  // namespace convoy
