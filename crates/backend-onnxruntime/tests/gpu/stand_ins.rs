//! Runs a test in a process that finds the stand-ins, and loads models on the simulated GPUs.

use std::any::Any;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use galatea_backend::{Backend, Device, Instance, LogLevel, Model, Placement};
use galatea_backend_onnxruntime::{BackendOptions, OnnxRuntimeBackend, OrtLibrary};
use galatea_config::{ModelSpec, SupportedFeatures};
use galatea_devices::{DeviceBuffer, Devices, PoolSizes};
use galatea_infer::{InferenceRequest, InferenceResponse, InputTensor, Status};
use galatea_pbtxt::parse_config_draft;
use galatea_tensor::{Buffer, DataType, DeviceRegion};

use crate::support::{
    Files, LOG, RecordingHost, TestModel, execute, library_path, tensor, unlimited,
};

/// The variable that contains the test's directory. It is set in the test's process.
const DIRECTORY: &str = "STAND_IN_DIRECTORY";

/// Runs `body` in a process with the stand-ins and these variables.
pub(crate) fn with_stand_ins(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(DIRECTORY).is_some() {
        return body();
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test.replace("::", "-"));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let libraries = libraries();
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", "--nocapture", test]);
    process.env(DIRECTORY, &directory).env("LD_LIBRARY_PATH", &libraries);
    process.env("STAND_IN_ONNXRUNTIME", library_path());
    let status = process.envs(variables.iter().copied()).status().unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(fs::read_to_string(directory.join("violations")).unwrap_or_default(), "");
    fs::remove_dir_all(&directory).unwrap();
}

/// The folder with the compiled stand-ins. The first test in a run compiles them for all tests.
fn libraries() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gpu-stand-ins");
    fs::create_dir_all(&folder).unwrap();
    let lock = fs::File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let driver = ["environment.c", "memory.c", "monitor.c", "streams.c"];
    compile("devices", &driver, &folder.join("libcuda.so.1"));
    compile("onnxruntime_gpu", &["stand_in.c"], &folder.join("libonnxruntime.so"));
    folder
}

fn compile(folder: &str, sources: &[&str], library: &Path) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(folder);
    let sources: Vec<PathBuf> = sources.iter().map(|file| folder.join(file)).collect();
    let changed = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    let newest = sources.iter().map(|source| changed(source)).max().flatten();
    if changed(library) > newest {
        return;
    }
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", "-O1", "-g"]);
    compiler.args(["-Wall", "-Wextra", "-Werror"]).args(sources);
    compiler.arg("-o").arg(library).args(["-lpthread", "-ldl"]);
    let done = compiler.output().expect("the tests need a C compiler, cc");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// The lines that a stand-in has reported so far.
pub(crate) fn report(name: &str) -> Vec<String> {
    let path = PathBuf::from(std::env::var_os(DIRECTORY).unwrap()).join(name);
    fs::read_to_string(path).unwrap_or_default().lines().map(ToOwned::to_owned).collect()
}

/// Makes a device appear lost from now on.
pub(crate) fn lose(number: u32) {
    let directory = std::env::var_os(DIRECTORY).unwrap();
    fs::write(Path::new(&directory).join(format!("lost-{number}")), "").unwrap();
}

/// The stand-in's devices, and a backend that uses them.
pub(crate) struct Gpus {
    pub(crate) devices: Devices,
    pub(crate) backend: OnnxRuntimeBackend,
}

impl Gpus {
    pub(crate) fn new() -> Self {
        let found = Devices::discover(0.0);
        assert_eq!(found.notes, []);
        let devices = found.devices;
        devices.allocate_pools(&PoolSizes::default());
        let folder = PathBuf::from(std::env::var_os("LD_LIBRARY_PATH").unwrap());
        let log = Arc::new(|level: LogLevel, line: &str| {
            LOG.lock().unwrap().push(format!("{level:?} {line}"));
        });
        let backend_config = BTreeMap::new();
        let options = BackendOptions {
            processors: 2,
            backend_config,
            log,
            devices: devices.clone(),
            account: unlimited(),
        };
        let backend = OnnxRuntimeBackend::new(
            OrtLibrary::open(&folder.join("libonnxruntime.so")).unwrap(),
            options,
        )
        .unwrap();
        Self { devices, backend }
    }

    /// Loads a model without instances.
    pub(crate) fn try_load(
        &self,
        files: &Files,
        config: &str,
    ) -> Result<(Box<dyn Model>, Arc<RecordingHost>), Status> {
        let host = Arc::new(RecordingHost::default());
        let model = self.backend.load(Arc::new(self.spec(config)), files, host.clone())?;
        Ok((model, host))
    }

    /// Loads a model with one instance on GPU 0.
    pub(crate) fn load(&self, files: &Files, config: &str) -> TestModel {
        let (model, host) = self.try_load(files, config).unwrap();
        TestModel { instance: on_gpu(model.as_ref(), 0).unwrap(), model, host }
    }

    fn spec(&self, text: &str) -> ModelSpec {
        let mut draft = parse_config_draft("config.pbtxt", text).unwrap();
        draft.resolve_name_and_backend("m", &["model.onnx".to_owned()]).unwrap();
        let mut support = SupportedFeatures::default();
        support.gpus = self.devices.numbers();
        draft.into_validated_spec(&support).unwrap()
    }

    /// A tensor in GPU memory.
    pub(crate) fn tensor_on(
        &self,
        gpu: i32,
        name: &str,
        datatype: DataType,
        dims: &[i64],
        data: Vec<u8>,
    ) -> InputTensor {
        let memory = self.upload(gpu, data);
        InputTensor { data: buffer(&memory), ..tensor(name, datatype, dims, Vec::new()) }
    }

    /// GPU memory with these bytes.
    pub(crate) fn upload(&self, gpu: i32, data: Vec<u8>) -> DeviceBuffer {
        let device = self.devices.device(gpu).unwrap();
        let memory = device.allocate_pooled(data.len()).unwrap();
        let stream = device.stream().unwrap();
        stream.upload(data, &memory).unwrap();
        stream.synchronize().unwrap();
        memory
    }

    /// Returns the contents of GPU memory.
    #[allow(unsafe_code, reason = "a region is an address")]
    pub(crate) fn download(&self, buffer: &Buffer) -> Vec<u8> {
        let region = buffer.device_region().unwrap();
        let gpu = i32::try_from(region.device).unwrap();
        let device = self.devices.device(gpu).unwrap();
        // SAFETY: the region's owner keeps the memory allocated.
        let memory = unsafe {
            device.wrap_foreign_memory(
                region.address,
                region.byte_size,
                Box::new(region.owner.clone()),
            )
        };
        let target = self.devices.allocate_host_buffer(region.byte_size);
        let stream = device.stream().unwrap();
        stream.download(&memory, target).unwrap().wait().unwrap().to_vec()
    }
}

/// The current contents of GPU memory, regardless of queued work. Requires `STAND_IN_READABLE`.
#[allow(unsafe_code, reason = "a region is an address, here of this process")]
pub(crate) fn peek(buffer: &Buffer) -> Vec<u8> {
    let region = buffer.device_region().unwrap();
    let address = std::ptr::with_exposed_provenance::<u8>(usize::try_from(region.address).unwrap());
    // SAFETY: the stand-in allocates the memory in this process, which may read it; the region's
    // owner keeps the memory allocated.
    unsafe { std::slice::from_raw_parts(address, region.byte_size) }.to_vec()
}

/// A buffer in GPU memory.
pub(crate) fn buffer(memory: &DeviceBuffer) -> Buffer {
    let owner: Arc<dyn Any + Send + Sync> = Arc::new(memory.clone());
    Buffer::from_device(DeviceRegion {
        device: memory.device().number(),
        address: memory.address(),
        byte_size: memory.len(),
        owner,
    })
}

/// Creates an instance on a GPU.
pub(crate) fn on_gpu(model: &dyn Model, gpu: u32) -> Result<Box<dyn Instance>, Status> {
    model.create_instance(&Placement {
        name: format!("m_0_{gpu}"),
        device: Device::Gpu(gpu),
        host_policy_settings: BTreeMap::new(),
    })
}

/// Executes one request.
pub(crate) fn execute_one(
    instance: &mut dyn Instance,
    host: &Arc<RecordingHost>,
    request: InferenceRequest,
) -> Result<InferenceResponse, Status> {
    execute(instance, host, vec![request]).remove(0)
}
