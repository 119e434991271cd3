ConstantHandle a = ConstantHandle(input_handles[0]);
int32_t a_expected_dtype = aoti_torch_dtype_float32();
if (3 != a_size[1]) {
void AOTInductorModel::run_impl(
assert_size_stride(a, {s77, 3L}, {3L, 1L}, "input"); }
const int64_t int_array_0[] = {s77, 3L};
C(aoti_torch_empty_strided(2, int_array_0, int_array_1, cached_torch_dtype_int64, this->device_idx_, &buf0_handle));
auto var_0 = wrap(reinterpret_tensor_wrapper(buf0, 1, int_array_0, int_array_3, 0L));
auto buf5 = std::move(buf0);  // reuse
assert_size_stride(buf2, {s77, 2L}, {2L, 1L}, "topk", cached_torch_dtype_bool, "torch.bool"); }
output_handles[0] = buf5.release();
output_handles[2] = output_handles[0];
