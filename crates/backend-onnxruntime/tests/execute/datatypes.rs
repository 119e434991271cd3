//! Tests that elements of every type pass through a model unchanged.

use galatea_tensor::DataType;
use galatea_tensor::elements::push_bytes_element;

use crate::support::onnx::{Element, STRING, identity};
use crate::support::{load, output, request, tensor};

/// The ONNX numbers of the server's data types.
const FIXED_SIZE: [(DataType, u64); 13] = [
    (DataType::Bool, 9),
    (DataType::Uint8, 2),
    (DataType::Uint16, 4),
    (DataType::Uint32, 12),
    (DataType::Uint64, 13),
    (DataType::Int8, 3),
    (DataType::Int16, 5),
    (DataType::Int32, 6),
    (DataType::Int64, 7),
    (DataType::Fp16, 10),
    (DataType::Fp32, 1),
    (DataType::Fp64, 11),
    (DataType::Bf16, 16),
];

fn config(datatype: DataType) -> String {
    format!(
        "max_batch_size: 4
         input [ {{ name: 'INPUT0' data_type: {0} dims: [ -1 ] }} ]
         output [ {{ name: 'OUTPUT0' data_type: {0} dims: [ -1 ] }} ]",
        datatype.config_name()
    )
}

#[test]
// row: ONNX-07
fn elements_of_fixed_size_keep_their_bytes() {
    for (datatype, number) in FIXED_SIZE {
        let mut loaded = load(identity(Element(number), &[-1, -1]), &config(datatype));
        let size = datatype.byte_size().unwrap();
        let data = |rows: usize, seed: u8| -> Vec<u8> {
            (0..rows * 3 * size).map(|byte| u8::try_from(byte % 2).unwrap() ^ seed).collect()
        };
        let one =
            |rows: i64, data: Vec<u8>| request(vec![tensor("INPUT0", datatype, &[rows, 3], data)]);
        let alone = loaded.execute_one(one(2, data(2, 0))).unwrap();
        assert_eq!(output(&alone, "OUTPUT0"), (&[2, 3][..], &data(2, 0)[..]), "{datatype}");
        let results = loaded.execute(vec![one(1, data(1, 1)), one(3, data(3, 0))]);
        let first = results[0].as_ref().unwrap();
        let second = results[1].as_ref().unwrap();
        assert_eq!(output(first, "OUTPUT0"), (&[1, 3][..], &data(1, 1)[..]), "{datatype}");
        assert_eq!(output(second, "OUTPUT0"), (&[3, 3][..], &data(3, 0)[..]), "{datatype}");
        assert_eq!(*loaded.host.batches.lock().unwrap(), [2, 4]);
    }
}

fn framed(elements: &[&[u8]]) -> Vec<u8> {
    let mut data = Vec::new();
    for element in elements {
        push_bytes_element(&mut data, element).unwrap();
    }
    data
}

#[test]
// row: ONNX-07
fn strings_keep_their_bytes() {
    let mut loaded = load(identity(STRING, &[-1, -1]), &config(DataType::Bytes));
    let long = vec![b'x'; 100];
    let first = framed(&[b"a\0b", b""]);
    let second = framed(&[b"\xff\xfe", &long, b"\0", b"end"]);
    let one = |rows: i64, data: &[u8]| {
        request(vec![tensor("INPUT0", DataType::Bytes, &[rows, 2], data.to_vec())])
    };
    let alone = loaded.execute_one(one(2, &second)).unwrap();
    assert_eq!(output(&alone, "OUTPUT0"), (&[2, 2][..], &second[..]));
    let results = loaded.execute(vec![one(1, &first), one(2, &second)]);
    assert_eq!(output(results[0].as_ref().unwrap(), "OUTPUT0"), (&[1, 2][..], &first[..]));
    assert_eq!(output(results[1].as_ref().unwrap(), "OUTPUT0"), (&[2, 2][..], &second[..]));
    let none = request(vec![tensor("INPUT0", DataType::Bytes, &[1, 0], Vec::new())]);
    assert_eq!(output(&loaded.execute_one(none).unwrap(), "OUTPUT0"), (&[1, 0][..], &[][..]));
}
