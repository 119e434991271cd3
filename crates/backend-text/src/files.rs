//! The files of a version, in the form that the crate `text` reads.

use std::fs::File;
use std::io::Read;

use galatea_backend::ModelFiles;
use galatea_infer::Code;
use galatea_text::TextModelFiles;

/// The files in a version's directory.
pub(crate) struct VersionFiles<'a>(pub(crate) &'a dyn ModelFiles);

impl TextModelFiles for VersionFiles<'_> {
    fn read(&self, path: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, String> {
        let path = match self.0.resolve(path) {
            Ok(path) => path,
            Err(status) if status.code() == Code::NotFound => return Ok(None),
            Err(status) => return Err(status.message().to_owned()),
        };
        let mut content = Vec::new();
        let file = File::open(&path).map_err(|error| error.to_string())?;
        let read = file.take(bytes_max.saturating_add(1)).read_to_end(&mut content);
        read.map_err(|error| error.to_string())?;
        if u64::try_from(content.len()).is_ok_and(|size| size > bytes_max) {
            return Err(format!("the file is larger than {bytes_max} bytes"));
        }
        Ok(Some(content))
    }
}
