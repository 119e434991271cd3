//! Everything that a client sends on a connection of the doors for SageMaker and Vertex AI. The
//! first byte of the input selects the door.

#![no_main]

use std::sync::LazyLock;

use galatea_codec_http::SageMakerModelPath;
use galatea_fuzz::{DoorBuilder, exchange};
use libfuzzer_sys::fuzz_target;

static SAGEMAKER: LazyLock<DoorBuilder> = LazyLock::new(DoorBuilder::sagemaker);
static VERTEX_AI: LazyLock<DoorBuilder> = LazyLock::new(DoorBuilder::vertex_ai);

fuzz_target!(|data: &[u8]| {
    let Some((selector, data)) = data.split_first() else { return };
    let door = if selector % 2 == 0 { &SAGEMAKER } else { &VERTEX_AI };
    let answer = exchange(door, data);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{answer:?}");
    let Ok(path) = SageMakerModelPath::of(&String::from_utf8_lossy(data)) else { return };
    assert!(path.directory.starts_with(&path.parent));
    assert_eq!(path.parent.matches('/').count(), 4, "{path:?}");
    assert!(!path.directory.split('/').any(|part| part == ".."), "{path:?}");
});
