    ConstantHandle arg2_1 = ConstantHandle(input_handles[0]);
    int32_t arg2_1_expected_dtype = aoti_torch_dtype_float32();
    if (arg2_1_size[0] < 2) {
    if (arg2_1_size[0] > 1024) {
    if (4 != arg2_1_size[1]) {
    if (4 != arg2_1_stride[0]) {
    if (1 != arg2_1_stride[1]) {
void AOTInductorModel::run_impl(
    if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg2_1, {s17, 4L}, {4L, 1L}, "input"); }
