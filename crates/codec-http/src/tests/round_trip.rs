//! Round trips: responses with random tensors, decoded as the inputs of a request.

use galatea_tensor::DataType;
use galatea_tensor::elements::push_bytes_element;

use super::mutation::Random;
use super::response::{output, response};
use super::*;
use crate::OutputFormat;

fn random_elements(random: &mut Random, datatype: DataType, count: usize) -> Vec<u8> {
    let mut data = Vec::new();
    for _ in 0..count {
        match datatype {
            DataType::Bool => data.push(random.below(2) as u8),
            DataType::Bytes => {
                let length = random.below(9) as usize;
                let text: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
                push_bytes_element(&mut data, &text).unwrap();
            }
            _ => {
                let size = datatype.byte_size().unwrap();
                data.extend_from_slice(&random.next().to_le_bytes()[..size]);
            }
        }
    }
    data
}

/// Replaces each NaN with the one that JSON can represent.
fn canonical(datatype: DataType, mut data: Vec<u8>) -> Vec<u8> {
    match datatype {
        DataType::Fp32 => data.as_chunks_mut::<4>().0.iter_mut().for_each(|bytes| {
            if f32::from_le_bytes(*bytes).is_nan() {
                *bytes = f32::NAN.to_le_bytes();
            }
        }),
        DataType::Fp64 => data.as_chunks_mut::<8>().0.iter_mut().for_each(|bytes| {
            if f64::from_le_bytes(*bytes).is_nan() {
                *bytes = f64::NAN.to_le_bytes();
            }
        }),
        _ => {}
    }
    data
}

/// Returns the body of a response, with `outputs` renamed so that it is a request.
fn echoed(datatype: DataType, count: usize, data: Vec<u8>, form: OutputFormat) -> Vec<u8> {
    let dims = [i64::try_from(count).unwrap()];
    let response = response(vec![output(datatype, &dims, data)]);
    let encoded = encode_infer_response(&response, &OutputFormatMap::uniform(form)).unwrap();
    let length = encoded.header_length.unwrap_or(encoded.chunks[0].len());
    let body = encoded.chunks.concat();
    let at = body.windows(9).position(|window| window == b"\"outputs\"").unwrap();
    let request = Bytes::from([&body[..at], b"\"inputs\" ", &body[at + 9..]].concat());
    let (request, _) = decode_infer(&request, length, target(), &MessageLimits::default()).unwrap();
    request.inputs[0].data.host_bytes().unwrap().to_vec()
}

#[test]
fn tensors_survive_both_forms() {
    let mut random = Random::new(7);
    for datatype in DataType::ALL {
        for _ in 0..300 {
            let count = random.below(12) as usize;
            let data = random_elements(&mut random, datatype, count);
            assert_eq!(echoed(datatype, count, data.clone(), OutputFormat::Binary), data);
            if matches!(datatype, DataType::Fp16 | DataType::Bf16) {
                continue;
            }
            let data = canonical(datatype, data);
            let got = echoed(datatype, count, data.clone(), OutputFormat::Json);
            assert_eq!(canonical(datatype, got), data, "{datatype}");
        }
    }
}

#[test]
fn doubles_are_parsed_like_the_standard_library() {
    let mut random = Random::new(11);
    for _ in 0..20_000 {
        let digits = random.next() >> random.below(64);
        let point = random.below(25);
        let exponent = i64::try_from(random.below(60)).unwrap() - 30;
        let text =
            format!("{digits}.{:0width$}e{exponent}", random.below(1000), width = point as usize);
        let json = input(&format!(r#""datatype":"FP64","shape":[1],"data":[{text}]"#));
        let expected: f64 = text.parse().unwrap();
        assert_eq!(bytes_of(&json), hex(&expected.to_le_bytes()), "{text}");
    }
}
