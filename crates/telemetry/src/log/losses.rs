//! Log records that could not be written, for instance because the disk is full.

use std::io::{self, Write};

/// The records lost since the last successful write.
#[derive(Debug, Default)]
pub(super) struct Losses {
    count: u64,
    reason: String,
    /// True if the last record was only partly written.
    is_torn: bool,
}

impl Losses {
    /// Writes a record. After losses, a notice precedes it; `notice` builds it from the losses'
    /// description. A failure can't be reported anywhere else, so the notice is written once
    /// writing succeeds again.
    pub(super) fn write(
        &mut self,
        writer: &mut dyn Write,
        record: &str,
        notice: impl FnOnce(&str) -> String,
    ) {
        let written = if self.count == 0 {
            write_whole(writer, record)
        } else {
            let told = format!(
                "{} records before this one could not be written: {}",
                self.count, self.reason
            );
            let end_of_torn = if self.is_torn { "\n" } else { "" };
            write_whole(writer, &format!("{end_of_torn}{}{record}", notice(&told)))
        };
        match written {
            Ok(()) if self.count == 0 => {}
            Ok(()) => *self = Self::default(),
            Err((error, is_torn)) => {
                self.count = self.count.saturating_add(1);
                self.reason = error.to_string();
                self.is_torn |= is_torn;
            }
        }
    }
}

/// Writes a string; the error states whether part of it was written.
fn write_whole(writer: &mut dyn Write, text: &str) -> Result<(), (io::Error, bool)> {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match writer.write(rest) {
            Ok(0) => return Err((io::ErrorKind::WriteZero.into(), rest.len() < text.len())),
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((error, rest.len() < text.len())),
        }
    }
    writer.flush().map_err(|error| (error, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for this many bytes.
    #[derive(Default)]
    struct Disk {
        text: String,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let count = bytes.len().min(self.room);
            self.room -= count;
            self.text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_was_lost_is_told_when_there_is_room() {
        let (mut disk, mut losses) = (Disk { room: 6, ..Disk::default() }, Losses::default());
        let mut write = |disk: &mut Disk, record| {
            losses.write(disk, record, |told| format!("W {told}\n"));
        };
        ["one\n", "two\n", "three\n"].into_iter().for_each(|record| write(&mut disk, record));
        assert_eq!(disk.text, "one\ntw");
        disk.room = 1000;
        ["four\n", "five\n"].into_iter().for_each(|record| write(&mut disk, record));
        assert_eq!(
            disk.text,
            "one\ntw\nW 2 records before this one could not be written: no storage space\n\
             four\nfive\n"
        );
    }

    #[test]
    fn a_log_of_which_nothing_was_written_goes_on_with_a_whole_line() {
        let (mut disk, mut losses) = (Disk::default(), Losses::default());
        losses.write(&mut disk, "one\n", |told| format!("W {told}\n"));
        disk.room = 1000;
        losses.write(&mut disk, "two\n", |_| String::from("W\n"));
        assert_eq!(disk.text, "W\ntwo\n");
    }
}
