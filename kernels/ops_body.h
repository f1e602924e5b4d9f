// ops_body.h — the ops of every device, each declared once: formula, shapes, cost. The rules are in
// backend.h. To be included in a class, with OP defined: `= 0` in Backend, `override` in a backend.

// ---- convolution -----------------------------------------------------------------------

// y[n,p,q,k] = act(b[k] + Σ_rsc x[n, p·stride+r−pad, q·stride+s−pad, c] · w[k,r,s,c])
//   x N×H×W×C, w K×R×S×C, b K or null, y N×P×Q×K. act is max(0,·) if relu, else nothing.
//   Pixels outside of x count as 0.            Cost 2·N·P·Q·K·R·S·C; x, w read, y written.
//   With a dilation, r·dilation and s·dilation are added to the pixel, in all three ops.
// Depthwise if w has one channel and x has K: channel k of y reads only channel k of x, in all
// three ops. Then y and dx have the type activations(), and the ops are bound by memory.
// If of_y is given, also computes moments(y, *of_y); a GPU does so before y leaves registers.
virtual void conv2d(Tensor x, Tensor w, const float* b, Window window, bool relu, Tensor y,
                    const Moments* of_y = nullptr) OP;

// dx[n,h,w,c] = Σ dy[n,p,q,k] · w[k,r,s,c] over all (p,q,k,r,s) that read x[n,h,w,c]
//   If add: dx += instead of =, for a w that is not depthwise; bf16 products may be rounded
//   before the sum. With a mask (of x's shape) dx, or the sum, is 0 where mask <= 0. If x is
//   the output of a relu, x is the mask: this saves the pass of activate_grad. Cost as conv2d.
virtual void conv2d_grad_x(Tensor dy, Tensor w, Window window, Tensor mask, Tensor dx,
                           bool add = false) OP;

// dw[k,r,s,c] += Σ_npq dy[n,p,q,k] · x[n, p·stride+r−pad, q·stride+s−pad, c]
// db[k]       += Σ_npq dy[n,p,q,k]           (skipped if null)              Cost as conv2d.
virtual void conv2d_grad_w(Tensor x, Tensor dy, Window window, Tensor dw, float* db) OP;

// ---- linear ----------------------------------------------------------------------------

// y[n,k] = act(b[k] + Σ_c x[n,c] · w[k,c])   x N×C (an image H×W×C is a row of H·W·C numbers),
//   w K×1×1×C, b K or null, y N×1×1×K.                       Cost 2·N·K·C; w read once.
virtual void linear(Tensor x, Tensor w, const float* b, bool relu, Tensor y) OP;
// dx[n,c] = Σ_k dy[n,k] · w[k,c], masked as in conv2d_grad_x.
virtual void linear_grad_x(Tensor dy, Tensor w, Tensor mask, Tensor dx) OP;
// dw[k,c] += Σ_n dy[n,k] · x[n,c]; db[k] += Σ_n dy[n,k] (skipped if null).
virtual void linear_grad_w(Tensor x, Tensor dy, Tensor dw, float* db) OP;

// ---- batch norm ------------------------------------------------------------------------

// For each group g of images and each channel c, over the M = (images of g)·H·W values:
//   mean = Σ x / M    var = Σ (x − mean)² / M
//   mean_rstd[g][0][c] = mean    mean_rstd[g][1][c] = rstd = 1/√(var + eps)
//   sums[c]     += (images of g) · mean
//   sums[C + c] += (images of g) · var · M/(M−1)             (M−1 taken as 1 if M is 1)
// The running statistics are computed from these sums over all ranks, so they are the same on
// one rank as on many. mean_rstd of an empty group is undefined.    Cost 1 read of x.
virtual void moments(Tensor x, const Moments& to) OP;

// y = act(gamma·(x − mean)·rstd + beta + residual)         residual may be null (not added)
//   mean_rstd from moments(x) for the same groups; x, y, residual N×H×W×C. y may be
//   residual, or x if no gradient is needed.              Cost 1 read of x, 1 write of y.
//   act.fits_norm(), and is none or relu if there is a residual.
virtual void batch_norm(Tensor x, GroupBounds groups, const float* mean_rstd, const float* gamma,
                        const float* beta, Tensor residual, Activation act, Tensor y) OP;

// With x̂ = (x − mean)·rstd and z = gamma·x̂ + beta:
//   dz = dy·act'(z), computed again from x; with a residual dz = dy·act'(y)
//   dgamma += Σ dz·x̂     dbeta += Σ dz     (each may be null: frozen)
//   dx = gamma·rstd·(dz − mean_g(dz) − x̂·mean_g(dz·x̂))    mean_g over the M values of the group
//   dresidual = dz                          (null: there was no residual; may be dy)
//   y is read only with act and dresidual. dx may be dy, unless dresidual is dy.
virtual void batch_norm_grad(Tensor x, Tensor y, Tensor dy, GroupBounds groups, const float* gamma,
                             const float* beta, Activation act, const float* mean_rstd, Tensor dx,
                             Tensor dresidual, float* dgamma, float* dbeta) OP;

// y = act(gamma·(x − mean)/√(var + eps) + beta + residual): batch_norm with fixed statistics.
virtual void batch_norm_eval(Tensor x, const float* gamma, const float* beta, const float* mean,
                             const float* var, Tensor residual, Activation act, float eps,
                             Tensor y) OP;
// dx = dz·gamma/√(var + eps), dz and dresidual as in batch_norm_grad; for frozen layers.
virtual void batch_norm_eval_grad(Tensor x, Tensor y, Tensor dy, const float* gamma,
                                  const float* beta, const float* mean, const float* var,
                                  Activation act, float eps, Tensor dx, Tensor dresidual) OP;

// ---- group norm ------------------------------------------------------------------------

// Over the H·W pixels and C/groups channels of each group of each image (layer norm: images of
// one pixel, one group). A depthwise conv2d of 1x1 applies gamma and beta:
//   y = (x − mean)·rstd   rstd = 1/√(var + eps), N×groups floats, null: not wanted. y may be x.
virtual void group_norm(Tensor x, int groups, float eps, Tensor y, float* rstd) OP;
// dx = rstd·(dy − mean(dy) − y·mean(dy·y)); dx may be dy.
virtual void group_norm_grad(Tensor y, int groups, const float* rstd, Tensor dy, Tensor dx) OP;

// ---- elementwise and pooling -----------------------------------------------------------

// x = f(x), in place.
virtual void activate(Tensor x, Activation f = {}) OP;
// dy = dy·f'(x), in place. of: y = f(x), or x if f.needs_x(). For max(0, x): dy where y > 0.
virtual void activate_grad(Tensor of, Tensor dy, Activation f = {}) OP;
// y[n,h,w,c] = x[n,h,w,c]·s[n,c]                     x, y N×H×W×C, s N×1×1×C
virtual void scale_channels(Tensor x, Tensor s, Tensor y) OP;
// dx[n,h,w,c] = dy[n,h,w,c]·s[n,c]     ds[n,c] = Σ_hw dy[n,h,w,c]·x[n,h,w,c]. dx may be dy.
virtual void scale_channels_grad(Tensor x, Tensor s, Tensor dy, Tensor dx, Tensor ds) OP;
// x += y, the same shape.
virtual void add(Tensor x, Tensor y) OP;
// to = from, or to += from if add. Both have the same N, H, W; the tensor with fewer channels
// corresponds to channels [first, first + its C) of the other.
virtual void copy_channels(Tensor to, Tensor from, int first, bool add = false) OP;

// y[n,p,q,c] = max of x over the window; padding never wins, and pad ≤ size/2.
//   argmax[n,p,q,c] = r·S + s of the first maximum in row order, in a byte: R·S ≤ 256.
virtual void max_pool(Tensor x, Window window, Tensor y, uint8_t* argmax) OP;
// dx[n,h,w,c] = Σ dy over the windows whose maximum is x[n,h,w,c]; mask as in conv2d_grad_x.
virtual void max_pool_grad(Tensor dy, const uint8_t* argmax, Window window, Tensor mask,
                           Tensor dx) OP;

// Adaptive average: y[n,p,q,c] = mean of x over rows [⌊p·H/P⌋, ⌈(p+1)·H/P⌉), columns likewise.
virtual void avg_pool(Tensor x, Tensor y) OP;
// If add: dx += instead of =.
virtual void avg_pool_grad(Tensor dy, Tensor dx, bool add = false) OP;

// Dropout, in place: x[n,i] = keep(n,i) ? x[n,i]/(1−p) : 0, where keep(n,i) is
//   uniform draw i of Random(seed, epoch, sample_ids[n], purpose) >= p.
// A sample has the same mask on every rank. The gradient is the same call on dy, so no mask is
// stored. draws and sample_ids (N numbers) are in host memory.
virtual void dropout(Tensor x, float p, const Draws& draws, std::span<const uint64_t> sample_ids,
                     uint16_t purpose) OP;

// ---- loss ------------------------------------------------------------------------------

// For each image with label t: target = (1−s)·onehot(t) + s/C, s the label smoothing. For mixed
// images onehot(t) is part·onehot(first) + (1−part)·onehot(second), and t below is the label
// with the larger part (the first label if both are equal):
//   loss_n   = −Σ_c target[c]·log softmax(logits[n])[c]
//   dlogits  = softmax(logits[n]) − target          the gradient of the sum, not of the mean
//   sums[0] += Σ loss_n, sums[1] += images whose label has rank 1, sums[2] += rank ≤ 5
//   (rank = 1 + classes with a greater logit, or with an equal logit and a smaller index)
// logits N×1×1×C; labels and mixed (N numbers each) in host memory; dlogits null in evaluation.
virtual void softmax_cross_entropy(Tensor logits, std::span<const int32_t> labels, float smoothing,
                                   Tensor dlogits, float* sums, const MixedLabels& mixed = {}) OP;
// y[n,c] = softmax(x[n])[c]; in place allowed.
virtual void softmax(Tensor x, Tensor y) OP;

// ---- optimizer: over a slice of the arenas, n floats -------------------------------------

// Decides whether this step may change the weights. x: the numbers that must be finite.
//   step->first_bad = the first i in [0, n) for which x[i] is NaN or infinite, or -1
//   step->scale     = first_bad < 0 and *images > 0 ? 1 / *images : 0
// The updates below change nothing if step->scale is 0. `images` and `step` are in device
// memory, so the host need not wait for the result.
virtual void check_finite(const float* x, size_t n, const float* images, StepState* step) OP;
// *sum = Σ x², in an order that does not depend on the number of threads.
virtual void sum_squares(const float* x, size_t n, float* sum) OP;
// Like PyTorch's clip_grad_norm_; `squares` is the sum of squares of the gradient sums:
//   step->norm = scale·√squares; step->clip = min(1, limit/(norm + 1e-6))
virtual void clip(const float* squares, float limit, StepState* step) OP;
// SGD as in PyTorch: g' = scale·clip·g + weight_decay·w; v = momentum·v + g'
//   w −= lr·(nesterov ? g' + momentum·v : v)     One pass: reads w, g, v, writes w, v.
// lr is step->lr · rate, also in adamw(). v starts as 0, so v = g' at the first step. Floats
// outside of the segments stay as they are. A GPU updates all segments in one launch.
virtual void sgd(float* w, const float* g, float* v, size_t n, const Segments& segments,
                 const StepState* step, float momentum, bool nesterov) OP;
// AdamW (Loshchilov, Hutter 2019) as in PyTorch:
//   w −= lr·weight_decay·w; g' = scale·clip·g; m = β1·m + (1−β1)·g'; v = β2·v + (1−β2)·g'²
//   w −= lr · (m/bias1) / (√(v/bias2) + eps)
virtual void adamw(float* w, const float* g, float* m, float* v, size_t n, const Segments& segments,
                   const StepState* step, float beta1, float beta2, float eps) OP;
// mean += step->part·(w − mean): a moving average of weights.
virtual void average(float* mean, const float* w, size_t n, const StepState* step) OP;
// w = (1−part)·w + part·scale·sums: running statistics from their sums over images.
virtual void moving_mean(float* w, const float* sums, size_t n, const StepState* step,
                         float part) OP;
// y = a·x + b·y, n floats; y is not read if b is 0. y may be x.
virtual void axpby(float a, const float* x, float b, float* y, size_t n) OP;
