//! Size-limited files. A full file is renamed with a number appended, and its successor begins with
//! the same header.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file to which lines are added.
#[derive(Debug)]
pub struct RotatingFile {
    path: PathBuf,
    /// The first line of each file, including its newline.
    header: String,
    bytes_max: u64,
    /// The maximum number of files, including the current one.
    files_max: u32,
    file: BufWriter<File>,
    bytes: u64,
}

impl RotatingFile {
    /// Creates a file, replacing earlier files with the same names.
    ///
    /// # Errors
    ///
    /// Returns an error if the file can't be written.
    pub fn create(path: &Path, header: &str, bytes_max: u64, files_max: u32) -> io::Result<Self> {
        for number in 1..files_max {
            match std::fs::remove_file(numbered(path, number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let header = format!("{header}\n");
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(header.as_bytes())?;
        let bytes = length(&header);
        Ok(Self { path: path.to_owned(), header, bytes_max, files_max, file, bytes })
    }

    /// Adds a line, starting the next file if the current one is full. A line is never split.
    ///
    /// # Errors
    ///
    /// Returns an error if the line can't be written.
    pub fn add(&mut self, line: &str) -> io::Result<()> {
        let added = length(line) + 1;
        if self.bytes.saturating_add(added) > self.bytes_max && self.bytes > length(&self.header) {
            self.rotate()?;
        }
        writeln!(self.file, "{line}")?;
        self.bytes = self.bytes.saturating_add(added);
        Ok(())
    }

    /// Flushes the added lines to the operating system.
    ///
    /// # Errors
    ///
    /// Returns an error if the lines can't be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    /// Renames the previous file to number 1, number 1 to number 2 and so on, replacing the oldest
    /// one.
    fn rotate(&mut self) -> io::Result<()> {
        self.file.flush()?;
        for number in (1..self.files_max.saturating_sub(1)).rev() {
            match std::fs::rename(numbered(&self.path, number), numbered(&self.path, number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.files_max > 1 {
            std::fs::rename(&self.path, numbered(&self.path, 1))?;
        }
        self.file = BufWriter::new(File::create(&self.path)?);
        self.file.write_all(self.header.as_bytes())?;
        self.bytes = length(&self.header);
        Ok(())
    }
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

fn length(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_files_are_kept_each_with_the_header() {
        let folder = std::env::temp_dir().join(format!("galatea_traffic_{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.jsonl");
        let text = |path: PathBuf| std::fs::read_to_string(path).ok();
        // The header takes two bytes, and each line four.
        let mut file = RotatingFile::create(&path, "h", 10, 3).unwrap();
        for number in 10..17 {
            file.add(&format!("l{number}")).unwrap();
        }
        file.flush().unwrap();
        assert_eq!(text(path.clone()).as_deref(), Some("h\nl16\n"));
        assert_eq!(text(numbered(&path, 1)).as_deref(), Some("h\nl14\nl15\n"));
        assert_eq!(text(numbered(&path, 2)).as_deref(), Some("h\nl12\nl13\n"));
        assert_eq!(text(numbered(&path, 3)), None);
        let mut only = RotatingFile::create(&path, "h", 3, 1).unwrap();
        only.add("long").unwrap();
        only.add("second").unwrap();
        only.flush().unwrap();
        assert_eq!(text(path).as_deref(), Some("h\nsecond\n"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
