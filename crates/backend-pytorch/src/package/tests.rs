use std::io::Write as _;

use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::*;

/// A package in a temporary directory, which is removed together with the value.
struct TestPackage(PathBuf);

impl TestPackage {
    fn new(files: &[(&str, &[u8])]) -> Self {
        let folder = private_folder(&std::env::temp_dir()).unwrap();
        let mut writer = ZipWriter::new(File::create(folder.join("model.pt2")).unwrap());
        for (name, content) in files {
            writer.start_file(*name, SimpleFileOptions::default()).unwrap();
            writer.write_all(content).unwrap();
        }
        writer.finish().unwrap();
        Self(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.join("model.pt2")
    }

    fn open(&self) -> Result<Package, String> {
        Package::open(&self.path()).map_err(|status| status.message().to_owned())
    }
}

impl Drop for TestPackage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const SOURCE: &str = "ConstantHandle a = ConstantHandle(input_handles[0]);\nif (a_size[0] < 2) {\n";

#[test]
fn a_package_is_read_with_and_without_a_directory() {
    for prefix in ["m/", ""] {
        let name = |file: &str| format!("{prefix}data/aotinductor/model/x.wrapper{file}");
        let package = TestPackage::new(&[
            (&name(".cpp"), SOURCE.as_bytes()),
            (&name("_metadata.json"), br#"{"AOTI_DEVICE_KEY": "cpu"}"#),
            (&name(".json"), br#"{"nodes": [{"node": {"target": "aten::bincount"}}]}"#),
            (&name(".so"), b"code"),
        ]);
        let mut open = package.open().unwrap();
        assert_eq!(open.metadata().unwrap().device, "cpu");
        assert_eq!(open.proxy_operations().unwrap(), ["aten::bincount"]);
        assert_eq!(compiled_inputs(&open.source().unwrap().unwrap())[0].sizes(), [-1]);
        let extracted = open.extract(&package.0).unwrap();
        assert_eq!(std::fs::read(&extracted.path).unwrap(), b"code");
        let folder = extracted.folder.clone();
        drop(extracted);
        assert!(!folder.exists());
    }
}

#[test]
fn what_a_package_lacks_is_empty() {
    let package = TestPackage::new(&[("data/aotinductor/model/x.so", b"code")]);
    let mut open = package.open().unwrap();
    assert_eq!(open.metadata().unwrap(), Metadata::default());
    assert!(open.proxy_operations().unwrap().is_empty());
    assert_eq!(open.source().unwrap(), None);
}

#[test]
fn other_files_are_refused_with_the_way_to_go() {
    let library = "m/data/aotinductor/model/x.wrapper.so";
    let error = |files: &[(&str, &[u8])]| TestPackage::new(files).open().err().unwrap();
    let exported = error(&[("m/models/model.json", b"{}")]);
    assert!(exported.contains("aoti_compile_and_package"), "{exported}");
    let other = error(&[("m/data/aotinductor/other/x.wrapper.so", b"")]);
    assert!(other.contains("no library of a model"), "{other}");
    let package = TestPackage::new(&[(library, b"code")]);
    std::fs::write(package.path(), b"code").unwrap();
    assert!(package.open().err().unwrap().contains("it is no ZIP archive"));
    std::fs::remove_file(package.path()).unwrap();
    assert!(package.open().err().unwrap().contains("No such file"));
}

#[test]
fn weights_beside_the_library_are_found() {
    let library = "m/data/aotinductor/model/x.wrapper.so";
    let blob = "m/data/aotinductor/model/x_weights.blob";
    let weight = "m/data/weights/weight_0";
    let list = "m/data/aotinductor/model/weights_config.json";
    let place = |files: &[(&str, &[u8])], source: Option<&str>| {
        let place = TestPackage::new(files).open().unwrap().weights_place(source);
        place.map_err(|status| status.message().to_owned())
    };
    assert_eq!(place(&[(library, b"")], None), Ok(WeightsPlace::Library));
    assert_eq!(place(&[(library, b""), (blob, b"")], None), Ok(WeightsPlace::Blob));
    let error = place(&[(library, b""), (weight, b"")], None).unwrap_err();
    assert!(
        error.contains("no file says which weights are in 'm/data/weights/weight_0'"),
        "{error}"
    );
    let pickled = [(library, &b""[..]), (weight, b""), (list, b"{}")];
    assert_eq!(place(&pickled, None), Ok(WeightsPlace::Pickled));
    let is_pickled = |files: &[(&str, &[u8])]| {
        TestPackage::new(files).open().unwrap().has_pickled_weights().unwrap()
    };
    assert!(is_pickled(&pickled) && !is_pickled(&pickled[..1]) && !is_pickled(&pickled[..2]));
    // Such weights may also belong to an exported program in the same package.
    let exported = [(library, &b""[..]), (weight, b""), ("m/models/model.json", b"")];
    assert_eq!(place(&exported, None), Ok(WeightsPlace::Library));
    let without = ": AOTInductorModelBase(1, 1, 3, device, dir, false) {";
    assert!(place(&exported, Some(without)).unwrap_err().contains("it has no weights"));
    let package = TestPackage::new(&[(library, b""), (blob, b"weights")]);
    let read = package.open().unwrap().read_blob(|file, size| {
        let mut content = Vec::new();
        file.read_to_end(&mut content).map(|_| (content, size))
    });
    assert_eq!(read.unwrap(), (b"weights".to_vec(), 7));
}

#[test]
fn a_truncated_or_changed_package_is_an_error_and_nothing_else() {
    let name = |file: &str| format!("m/data/aotinductor/model/x.wrapper{file}");
    let package = TestPackage::new(&[
        (&name(".cpp"), SOURCE.as_bytes()),
        (&name("_metadata.json"), br#"{"AOTI_DEVICE_KEY": "cpu"}"#),
        (&name(".so"), b"code"),
    ]);
    let whole = std::fs::read(package.path()).unwrap();
    let read_all = || {
        let Ok(mut open) = package.open() else { return };
        let _ = (open.metadata(), open.proxy_operations(), open.source());
        let _ = open.extract(&package.0);
    };
    for length in 0..whole.len() {
        std::fs::write(package.path(), &whole[..length]).unwrap();
        assert!(package.open().is_err(), "{length} bytes");
    }
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 0xff;
        std::fs::write(package.path(), &changed).unwrap();
        read_all();
    }
}
