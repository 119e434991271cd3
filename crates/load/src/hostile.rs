//! Requests that no client should send. `MODEL` stands for the model's name.

/// A request's kind and its bytes.
pub(crate) struct Attack {
    pub(crate) kind: &'static str,
    pub(crate) bytes: Vec<u8>,
}

/// A kind, and a function that builds its bytes for a model.
type AttackMaker = (&'static str, fn(&str) -> Vec<u8>);

/// A hostile HTTP request to `model`; the number selects one.
pub(crate) fn http(model: &str, number: u64) -> Attack {
    let attacks: [AttackMaker; 12] = [
        ("malformed JSON", |model| infer(model, &[], b"{\"inputs\":[{")),
        ("deep JSON", |model| infer(model, &[], "[".repeat(50_000).as_bytes())),
        ("many dims", |model| {
            let dims = "2,".repeat(20_000);
            let json = format!(
                "{{\"inputs\":[{{\"name\":\"INPUT0\",\"datatype\":\"INT32\",\"shape\":[{dims}2],\
                 \"data\":[1]}}]}}"
            );
            infer(model, &[], json.as_bytes())
        }),
        ("overflowing shape", |model| {
            infer(
                model,
                &[],
                b"{\"inputs\":[{\"name\":\"INPUT0\",\"datatype\":\"INT32\",\
                  \"shape\":[1,8589934592,8589934592],\"data\":[1]}]}",
            )
        }),
        ("header length out of range", |model| {
            infer(model, &["Inference-Header-Content-Length: 99999999999999999999"], b"{}")
        }),
        ("unknown coding", |model| infer(model, &["Content-Encoding: br"], b"{}")),
        ("broken gzip", |model| infer(model, &["Content-Encoding: gzip"], b"\x1f\x8b\x08junk")),
        ("tiny chunks", |model| {
            let mut bytes = head(model, &["Transfer-Encoding: chunked"]);
            bytes.extend(b"1\r\nA\r\n".repeat(3000));
            bytes.extend(b"0\r\n\r\n");
            bytes
        }),
        ("broken chunk", |model| {
            let mut bytes = head(model, &["Transfer-Encoding: chunked"]);
            bytes.extend(b"zz\r\nA\r\n");
            bytes
        }),
        ("two lengths", |model| {
            let mut bytes = head(model, &["Content-Length: 2", "Content-Length: 3"]);
            bytes.extend(b"{}\n");
            bytes
        }),
        ("traversal", |_| {
            b"POST /v2/repository/models/..%2f..%2fetc/load HTTP/1.1\r\nHost: a\r\n\
              Content-Length: 2\r\n\r\n{}"
                .to_vec()
        }),
        ("not HTTP", |_| b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec()),
    ];
    choose(&attacks, model, number)
}

/// Hostile bytes for an HTTP/2 connection before its handshake.
pub(crate) fn http2(number: u64) -> Attack {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let attacks: [AttackMaker; 5] = [
        ("not HTTP/2", |_| b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        ("settings of a wrong size", |_| [PREFACE, b"\0\0\x05\x04\0\0\0\0\0abcde"].concat()),
        ("a frame that is too long", |_| [PREFACE, b"\xff\xff\xff\0\0\0\0\0\x01"].concat()),
        ("data for a stream that is not open", |_| {
            [PREFACE, b"\0\0\0\x04\0\0\0\0\0", b"\0\0\x01\0\0\0\0\0\x07x"].concat()
        }),
        ("malformed headers", |_| {
            [PREFACE, b"\0\0\0\x04\0\0\0\0\0", b"\0\0\x04\x01\x05\0\0\0\x01\xff\xff\xff\xff"]
                .concat()
        }),
    ];
    choose(&attacks, "", number)
}

/// A hostile gRPC message, with its prefix.
pub(crate) fn message(number: u64) -> Attack {
    let attacks: [AttackMaker; 4] = [
        ("malformed message", |_| b"\0\0\0\0\x04\xff\xff\xff\xff".to_vec()),
        ("length of a message beyond its data", |_| b"\0\xff\xff\xff\xffabc".to_vec()),
        ("compressed without a coding", |_| b"\x01\0\0\0\x02ab".to_vec()),
        ("no model", |_| b"\0\0\0\0\0".to_vec()),
    ];
    choose(&attacks, "", number)
}

fn choose(attacks: &[AttackMaker], model: &str, number: u64) -> Attack {
    let index = usize::try_from(number % attacks.len() as u64).unwrap_or_default();
    let (kind, bytes) = attacks[index];
    Attack { kind, bytes: bytes(model) }
}

fn infer(model: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let length = format!("Content-Length: {}", body.len());
    let mut bytes = head(model, &[headers, &[&length]].concat());
    bytes.extend_from_slice(body);
    bytes
}

fn head(model: &str, headers: &[&str]) -> Vec<u8> {
    let mut text = format!("POST /v2/models/{model}/infer HTTP/1.1\r\nHost: a\r\n");
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    text.into_bytes()
}
