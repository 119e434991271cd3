//! Compiled models whose work depends only on the shapes of their inputs.
//!
//! The source of a model's library consists of loops over sizes, which follow from the shapes, and
//! of calls of PyTorch's C functions, whose names begin with `aoti_torch_`. A branch or a loop that
//! depends on a tensor's values first reads a value with a function that the list lacks
//! (`aoti_torch_item_bool`), and so does a shape.

/// The functions whose work depends only on shapes, without their prefix, in sorted order.
const PREDICTABLE: [&str; 113] = [
    "_alloc_from_pool",
    "_reinterpret_tensor",
    "addmm_out",
    "as_strided",
    "assign_tensors",
    "assign_tensors_out",
    "aten_amax",
    "aten_fill__Scalar",
    "aten_full",
    "aten_narrow",
    "aten_new_empty",
    "aten_new_zeros",
    "aten_pad",
    "aten_subtract_Tensor",
    "bmm_out",
    "check",
    "clone",
    "clone_preserve_strides",
    "convolution",
    "copy_",
    "cpu__adaptive_avg_pool2d",
    "cpu__adaptive_avg_pool3d",
    "cpu__addmm_activation",
    "cpu__dyn_quant_matmul_4bit",
    "cpu__efficientzerotensor",
    "cpu__fused_rms_norm",
    "cpu__int_mm_out",
    "cpu__linear_pointwise",
    "cpu__linear_pointwise_binary",
    "cpu__mkl_linear",
    "cpu__qconv2d_pointwise_binary_tensor",
    "cpu__qconv_pointwise_tensor",
    "cpu__qlinear_pointwise_binary_tensor",
    "cpu__qlinear_pointwise_tensor",
    "cpu__scaled_dot_product_flash_attention_for_cpu",
    "cpu__scaled_dot_product_fused_attention_overrideable",
    "cpu__scaled_mm",
    "cpu__scaled_mm_out",
    "cpu__trilinear",
    "cpu__weight_int4pack_mm_cpu_tensor",
    "cpu__weight_int8pack_mm",
    "cpu_abs",
    "cpu_adaptive_max_pool2d",
    "cpu_adaptive_max_pool3d",
    "cpu_add_Scalar",
    "cpu_add_Tensor",
    "cpu_addbmm",
    "cpu_addmm_out",
    "cpu_addmv",
    "cpu_angle",
    "cpu_avg_pool2d",
    "cpu_avg_pool3d",
    "cpu_baddbmm_out",
    "cpu_bmm_out",
    "cpu_cat",
    "cpu_convolution",
    "cpu_cummax",
    "cpu_cummin",
    "cpu_cumprod",
    "cpu_cumsum",
    "cpu_fill__Scalar",
    "cpu_logcumsumexp",
    "cpu_max_pool2d_with_indices",
    "cpu_max_pool3d_with_indices",
    "cpu_mkldnn__convolution_pointwise",
    "cpu_mkldnn__convolution_pointwise_binary",
    "cpu_mkldnn__convolution_pointwise_binary_",
    "cpu_mkldnn__convolution_transpose_pointwise",
    "cpu_mkldnn_rnn_layer",
    "cpu_mm_out",
    "cpu_mul_Scalar",
    "cpu_mul_Tensor",
    "cpu_narrow",
    "cpu_pad",
    "cpu_permute",
    "cpu_pow_Scalar",
    "cpu_pow_Tensor_Scalar",
    "cpu_pow_Tensor_Tensor",
    "cpu_reshape",
    "cpu_slice_Tensor",
    "cpu_squeeze_dim",
    "cpu_topk",
    "cpu_view_as_complex",
    "cpu_view_as_real",
    "cpu_view_dtype",
    "create_tensor_from_blob",
    "create_tensor_from_blob_v2",
    "delete_tensor_object",
    "empty_strided",
    "empty_strided_pinned",
    "get_data_ptr",
    "get_device_index",
    "get_device_type",
    "get_dim",
    "get_dtype",
    "get_layout",
    "get_numel",
    "get_size",
    "get_sizes",
    "get_storage_numel",
    "get_storage_offset",
    "get_storage_size",
    "get_stride",
    "get_strides",
    "is_contiguous",
    "is_defined",
    "mm_out",
    "new_tensor_handle",
    "new_uninitialized_tensor",
    "tensor_copy_",
    "view_as_real",
    "view_dtype",
    "zero_",
];

/// The beginnings of the names of functions that return constants, set a mode or wrap a number.
const CONSTANTS: [&str; 6] =
    ["device_type_", "dtype_", "grad_mode_", "layout_", "memory_format_", "scalar_to_tensor_"];

const PREFIX: &str = "aoti_torch_";

/// The directive by which a loop gets a team of threads. The compiler decides on their number.
const TEAM: &str = "#pragma omp parallel";

/// Returns true if the work of the model whose library has these sources depends only on the shapes
/// of its inputs, and the calling thread does it alone. Returns false if this is unknown.
pub(crate) fn is_predictable(sources: &[&str]) -> bool {
    let is_plain = |source: &&str| !source.contains(TEAM) && functions(source).all(is_listed);
    let calls_any = sources.iter().any(|source| functions(source).next().is_some());
    calls_any && sources.iter().all(is_plain)
}

/// The names of the functions that a source mentions, without their prefix.
fn functions(source: &str) -> impl Iterator<Item = &str> {
    source.match_indices(PREFIX).filter_map(|(start, _)| {
        let before = source.get(..start)?.chars().next_back();
        if before.is_some_and(is_of_name) {
            return None;
        }
        let rest = source.get(start + PREFIX.len()..)?;
        Some(rest.split(|one: char| !is_of_name(one)).next().unwrap_or_default())
    })
}

const fn is_of_name(one: char) -> bool {
    one.is_ascii_alphanumeric() || one == '_'
}

fn is_listed(function: &str) -> bool {
    PREDICTABLE.binary_search(&function).is_ok()
        || CONSTANTS.iter().any(|start| function.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted() {
        assert!(PREDICTABLE.is_sorted());
    }

    #[test]
    fn the_functions_of_a_source_decide() {
        let call = |function: &str| {
            format!("int32_t cached = aoti_torch_dtype_float32();\nCHECK({function}(a, &b));\n")
        };
        for function in ["aoti_torch_cpu_addmm_out", "aoti_torch_empty_strided", "other"] {
            assert!(is_predictable(&[&call(function)]), "{function}");
        }
        for function in [
            "aoti_torch_item_bool",
            "aoti_torch_cpu_nonzero",
            "aoti_torch_proxy_executor_call_function",
            "aoti_torch_call_dispatcher",
            "aoti_torch_cpu_randn",
            "aoti_torch_",
        ] {
            assert!(!is_predictable(&[&call(function)]), "{function}");
            assert!(!is_predictable(&[&call("other"), &call(function)]), "{function}");
        }
    }

    #[test]
    fn a_source_without_functions_or_with_threads_is_unknown() {
        let source = "aoti_torch_empty_strided(1, &a);";
        assert!(is_predictable(&[source, "void cpp_fused_relu_0(const float* a) { }"]));
        assert!(!is_predictable(&["void run() { }"]));
        assert!(!is_predictable(&[]));
        let kernel = "{\n    #pragma omp parallel num_threads(2)\n    { }\n}";
        assert!(!is_predictable(&[source, kernel]));
    }
}
