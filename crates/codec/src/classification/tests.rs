use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_infer::Code;
use galatea_tensor::elements::BytesElements;

use super::*;

fn output(datatype: DataType, dims: &[i64], data: Vec<u8>) -> OutputTensor {
    let shape = Shape::new(dims).unwrap();
    OutputTensor { name: "y".into(), datatype, shape, data: Buffer::from_vec(data) }
}

fn response(outputs: Vec<OutputTensor>) -> InferenceResponse {
    InferenceResponse {
        model_name: "m".into(),
        model_version: 1,
        id: String::from("id"),
        parameters: Default::default(),
        outputs,
    }
}

/// A model whose output `y` has labels.
fn model(batches: bool, labels: &str) -> Arc<ClassificationInfo> {
    let labels = ClassLabels::from_lines(labels.as_bytes().to_vec()).unwrap();
    let labels = BTreeMap::from([(String::from("y"), Arc::new(labels))]);
    Arc::new(ClassificationInfo::new(batches, labels))
}

fn asked(counts: &[(&str, u32)], model: &Arc<ClassificationInfo>) -> Classification {
    let asked = Classification::new(
        counts.iter().map(|&(name, count)| (name, (count > 0).then_some(count))),
    )
    .unwrap();
    asked.class_labels_cell().set_once(model);
    asked
}

fn texts(output: &OutputTensor) -> Vec<String> {
    assert_eq!(output.datatype, DataType::Bytes);
    let elements = BytesElements::new(output.data.host_bytes().unwrap());
    let texts: Vec<String> =
        elements.map(|text| String::from_utf8_lossy(text.unwrap()).into_owned()).collect();
    assert_eq!(u64::try_from(texts.len()).unwrap(), output.shape.element_count());
    texts
}

fn classified(
    output: OutputTensor,
    count: u32,
    model: &Arc<ClassificationInfo>,
) -> Result<OutputTensor, Status> {
    let response = asked(&[("y", count)], model).apply(response(vec![output]))?;
    Ok(response.outputs.into_iter().next().unwrap())
}

/// Checks the classes of one item without labels.
fn check(datatype: DataType, data: Vec<u8>, count: u32, expected: &[&str]) {
    let elements = i64::try_from(data.len() / datatype.byte_size().unwrap()).unwrap();
    let found = classified(output(datatype, &[elements], data), count, &Arc::default()).unwrap();
    assert_eq!(texts(&found), expected, "{datatype}");
}

fn fp32(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn fp64(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn the_largest_elements_are_first() {
    let values = fp32(&[1.0, 5.0, 10.0, 4.0]);
    check(DataType::Fp32, values.clone(), 2, &["10.000000:2", "5.000000:1"]);
    let all = ["10.000000:2", "5.000000:1", "4.000000:3", "1.000000:0"];
    check(DataType::Fp32, values.clone(), 4, &all);
    check(DataType::Fp32, values, u32::MAX, &all);
}

#[test]
fn integers_of_each_type_keep_their_sign_and_range() {
    check(DataType::Uint8, vec![0, 255, 7], 2, &["255:1", "7:2"]);
    check(DataType::Int8, vec![0x80, 0, 0x7f], 3, &["127:2", "0:1", "-128:0"]);
    check(DataType::Uint16, vec![0, 0, 0xff, 0xff], 1, &["65535:1"]);
    check(DataType::Int16, vec![0, 0x80, 0xff, 0xff], 1, &["-1:1"]);
    check(DataType::Uint32, [0, u32::MAX].map(u32::to_le_bytes).concat(), 1, &["4294967295:1"]);
    check(DataType::Int32, [i32::MIN, -2].map(i32::to_le_bytes).concat(), 1, &["-2:1"]);
    let limits = [u64::MAX - 1, u64::MAX].map(u64::to_le_bytes).concat();
    check(DataType::Uint64, limits, 2, &["18446744073709551615:1", "18446744073709551614:0"]);
    let limits = [i64::MIN, i64::MAX].map(i64::to_le_bytes).concat();
    check(DataType::Int64, limits, 2, &["9223372036854775807:1", "-9223372036854775808:0"]);
}

#[test]
fn floats_have_six_digits_after_the_point() {
    let values = fp32(&[0.1, -0.0, f32::MAX, 1e-7]);
    let largest = "340282346638528859811704183484516925440.000000:2";
    check(DataType::Fp32, values, 4, &[largest, "0.100000:0", "0.000000:3", "-0.000000:1"]);
    // Ties are rounded to even digits.
    check(DataType::Fp64, fp64(&[0.007_812_5, 0.023_437_5]), 2, &["0.023438:1", "0.007812:0"]);
    let text = format!("1{}.000000:0", "0".repeat(22));
    check(DataType::Fp64, fp64(&[1e22]), 1, &[&text]);
}

#[test]
fn nan_stays_where_the_library_leaves_it() {
    let values = [f64::NAN, 1.0, 2.0, -f64::NAN, 3.0];
    let expected = ["nan:0", "2.000000:2", "1.000000:1", "-nan:3", "3.000000:4"];
    check(DataType::Fp64, fp64(&values), 5, &expected);
    check(DataType::Fp64, fp64(&values), 3, &expected[..3]);
    check(DataType::Fp32, fp32(&values.map(|value| value as f32)), 5, &expected);
}

#[test]
fn up_to_sixteen_equal_values_are_sorted_by_index() {
    check(DataType::Uint8, vec![3, 5, 3, 5, 3], 4, &["5:1", "5:3", "3:0", "3:2"]);
    // Zeros of both signs are equal.
    check(DataType::Fp32, fp32(&[-0.0, 0.0]), 2, &["-0.000000:0", "0.000000:1"]);
    let first = ["9:0", "9:1", "9:2", "9:3", "9:4"];
    check(DataType::Int8, vec![9; 16], 5, &first);
    assert_eq!(largest(&[9; 17], 3), [(9, 8), (9, 16), (9, 15)]);
}

/// Returns the largest values with their indices.
fn largest(values: &[u8], count: usize) -> Vec<(u8, usize)> {
    let data = output(DataType::Uint8, &[values.len() as i64], values.to_vec());
    let found = classified(data, count as u32, &Arc::default()).unwrap();
    let pair = |text: &String| {
        let (value, index) = text.split_once(':').unwrap();
        (value.parse().unwrap(), index.parse().unwrap())
    };
    texts(&found).iter().map(pair).collect()
}

#[test]
fn a_selection_is_a_prefix_of_the_elements_as_the_library_sorts_them() {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    for elements in [1, 2, 15, 16, 17, 100, 1000] {
        let values: Vec<u8> = (0..elements).map(|_| next()).collect();
        let mut all: Vec<(u8, usize)> = values.iter().copied().zip(0..).collect();
        cpp_sort::sort(&mut all, |a, b| a.0 > b.0);
        for count in [1, 2, 5, elements / 2 + 1, elements] {
            assert_eq!(largest(&values, count), all[..count.min(elements)], "{elements}: {count}");
        }
    }
}

#[test]
fn classes_have_labels_where_they_exist() {
    let model = model(false, "cat\n\nd\u{f6}g");
    let found = classified(output(DataType::Uint8, &[4], vec![1, 2, 3, 4]), 4, &model).unwrap();
    assert_eq!(texts(&found), ["4:3", "3:2:d\u{f6}g", "2:1", "1:0:cat"]);
}

#[test]
fn each_item_of_a_batch_has_its_classes() {
    let check = |batches: bool, dims: &[i64], count: u32, shape: &[i64], expected: &[&str]| {
        let elements = dims.iter().product::<i64>();
        let data = (0..elements).map(|value| u8::try_from(value).unwrap()).collect();
        let found =
            classified(output(DataType::Uint8, dims, data), count, &model(batches, "")).unwrap();
        assert_eq!(found.shape.dims(), shape);
        assert_eq!(texts(&found), expected);
    };
    check(true, &[2, 3], 2, &[2, 2], &["2:2", "1:1", "5:2", "4:1"]);
    check(false, &[2, 3], 2, &[2], &["5:5", "4:4"]);
    check(true, &[2, 1, 2], 9, &[2, 2], &["1:1", "0:0", "3:1", "2:0"]);
    check(true, &[2], 3, &[2, 1], &["0:0", "1:0"]);
    check(false, &[], 3, &[1], &["0:0"]);
    check(true, &[], 3, &[1], &["0:0"]);
    check(true, &[2, 0], 3, &[2, 0], &[]);
    check(false, &[2, 0], 3, &[0], &[]);
    check(true, &[0, 2], 3, &[0], &[]);
}

#[test]
fn other_outputs_do_not_change() {
    let plain = |name: &str| OutputTensor {
        name: name.into(),
        ..output(DataType::Uint8, &[2], vec![1, 2])
    };
    let counts = [("x", 0), ("y", 1), ("z", 2), ("y", 2), ("x", 1)];
    let asked = asked(&counts, &model(false, "a\nb"));
    let found = asked.apply(response(vec![plain("x"), plain("y"), plain("z")])).unwrap();
    assert_eq!(found.outputs[0].datatype, DataType::Uint8);
    assert_eq!(texts(&found.outputs[1]), ["2:1:b"]);
    assert_eq!(texts(&found.outputs[2]), ["2:1", "1:0"]);
    assert_eq!(found.id, "id");
    assert!(Classification::new([("x", None)].into_iter()).is_none());
}

#[track_caller]
fn check_refused(output: OutputTensor, batches: bool, code: Code, message: &str) {
    let status = classified(output, 1, &model(batches, "")).unwrap_err();
    assert_eq!((status.code(), status.message()), (code, message));
}

#[test]
fn types_without_an_order_are_refused() {
    for (datatype, size) in
        [(DataType::Bool, 1), (DataType::Fp16, 2), (DataType::Bf16, 2), (DataType::Bytes, 4)]
    {
        let message =
            format!("class result not available for output due to unsupported type '{datatype}'");
        let output = output(datatype, &[1], vec![0; size]);
        check_refused(output, false, Code::InvalidArgument, &message);
    }
}

#[test]
fn an_item_may_have_a_million_elements() {
    let message = "classification output tensor too large";
    let many = |dims: &[i64]| {
        let elements = usize::try_from(dims.iter().product::<i64>()).unwrap();
        output(DataType::Uint8, dims, vec![0; elements])
    };
    let code = Code::InvalidArgument;
    check_refused(many(&[1_000_001]), false, code, message);
    check_refused(many(&[1, 1_000_001]), true, code, message);
    check_refused(many(&[2, 1_000_000]), false, code, message);
    assert!(classified(many(&[1_000_000]), 1, &model(false, "")).is_ok());
    // The limit applies to each item of a batch.
    assert!(classified(many(&[2, 1_000_000]), 1, &model(true, "")).is_ok());
}

#[test]
fn the_classes_of_an_output_are_bounded() {
    let long = format!("{}\n", "x".repeat(1 << 20)).repeat(2);
    let output = |items| output(DataType::Uint8, &[items, 2], vec![0; 2 * items as usize]);
    let model = model(true, &long);
    assert!(classified(output(100), 2, &model).is_ok());
    let status = classified(output(200), 2, &model).unwrap_err();
    assert_eq!(status.message(), "classification output tensor too large");
}

#[test]
fn bytes_that_do_not_fit_the_shape_are_an_error() {
    let output = output(DataType::Fp32, &[2], vec![0; 7]);
    let message = "output 'y' has another size than its shape says";
    check_refused(output, false, Code::Internal, message);
}

#[test]
fn unset_model_classes_are_an_error() {
    let asked = Classification::new([("y", Some(1))].into_iter()).unwrap();
    let status = asked.apply(response(Vec::new())).unwrap_err();
    assert_eq!(status.code(), Code::Internal);
}
