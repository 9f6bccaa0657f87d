"""The operations that compaction knows, by what they do; names are ATen's, without the underscore of in-place forms."""

# Elements only move.
VIEWS = {"view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "flatten", "unflatten"}
PERMUTATIONS = {"permute", "transpose", "t"}
PARTS = {"slice", "select", "split", "unsafe_split", "split_with_sizes", "unsafe_split_with_sizes", "unbind", "chunk"}
LOOKUPS = {"index", "index_select"}  # by numbers that may come from data
OTHERS = {"roll", "flip", "repeat", "constant_pad_nd", "pixel_shuffle", "pixel_unshuffle", "im2col", "unfold", "expand",
          "cat", "stack"}  # fmt: skip
MOVES = VIEWS | PERMUTATIONS | PARTS | LOOKUPS | OTHERS
KEEPING = {"roll", "flip", "index_select"}  # all dimensions stay where they are

# Element by element. Of one variable: the slope at zero is zero for the flat ones, so no gradient passes an element
# that is always zero.
FLAT = {"relu", "abs", "sign", "sgn", "hardshrink", "softshrink", "square", "relu6", "tanhshrink", "trunc", "round"}
ODD = {"gelu", "silu", "mish", "tanh", "elu", "selu", "celu", "leaky_relu", "hardswish", "neg", "sin", "sinh", "asinh",
       "atan", "erf", "expm1", "log1p", "prelu", "_prelu_kernel", "rrelu_with_noise", "softsign", "native_dropout",
       "nan_to_num", "tan", "asin", "atanh"}  # fmt: skip
SAME = {"clone", "_to_copy", "alias", "detach", "contiguous", "lift_fresh", "lift_fresh_copy", "to", "type_as"}
OTHER_UNARY = {"sigmoid", "softplus", "hardsigmoid", "exp", "cos", "cosh", "log", "sqrt", "rsqrt", "reciprocal",
               "log_sigmoid_forward", "acos", "erfc", "logical_not", "bitwise_not", "floor", "ceil", "exp2", "log2",
               "isnan", "isinf", "threshold", "frac"}  # fmt: skip
RANDOM = {"bernoulli", "uniform", "normal", "exponential", "random", "fill", "zero", "copy"}
BINARY = {"add", "sub", "rsub", "mul", "div", "maximum", "minimum", "where", "masked_fill", "pow", "hardtanh", "clamp",
          "clamp_min", "clamp_max", "addcmul", "addcdiv", "lerp", "atan2", "eq", "ne", "lt", "le", "gt", "ge",
          "logical_and", "logical_or", "bitwise_and", "bitwise_or", "remainder", "fmod", "floor_divide",
          "true_divide"}  # fmt: skip
ELEMENTWISE = FLAT | ODD | SAME | OTHER_UNARY | RANDOM | BINARY
FACTORIES = {"zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty", "rand", "randn"}
LIKE = {"zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"}
# The second dimension, channels, is kept; positions are mixed.
POOLS = {"avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices",
         "max_pool1d", "max_pool2d", "max_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
         "adaptive_max_pool2d", "adaptive_max_pool3d", "adaptive_avg_pool1d", "upsample_nearest1d",
         "upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d", "upsample_linear1d",
         "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
         "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d",
         "replication_pad3d"}  # fmt: skip
BATCH_NORMS = {"native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
               "_batch_norm_with_update", "_batch_norm_no_update", "cudnn_batch_norm", "batch_norm"}  # fmt: skip
NORMS = BATCH_NORMS | {"native_layer_norm", "native_group_norm"}
REDUCTIONS = {"sum", "mean", "amax", "amin", "linalg_vector_norm", "norm", "var", "std", "var_mean", "std_mean",
              "logsumexp", "prod"}  # fmt: skip
REDUCED_ONCE = {"sum", "mean", "amax", "amin", "linalg_vector_norm"}  # to one tensor, zeros to zero
ALONG = {"_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp"}
# Along one dimension elements are taken from, or added up at, places that a tensor of numbers says.
SCATTERED = {"gather", "index_add", "scatter_add"}
# Sums of products: the names of both factors, and of what is added.
OPERANDS = {"mm": ("self", "mat2", ""), "addmm": ("mat1", "mat2", "self"), "bmm": ("self", "mat2", ""),
            "baddbmm": ("batch1", "batch2", "self"), "convolution": ("input", "weight", "bias")}  # fmt: skip
