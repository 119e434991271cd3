//! An HTTP/1.1 response that arrives line by line.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The maximum time for a server to begin a response.
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(30);

/// The maximum size of a response head, in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// The maximum length of a body line, in bytes.
const LINE_BYTES_MAX: usize = 16 << 20;

/// The duration of one wait for a line.
const WAIT: Duration = Duration::from_millis(100);

/// A connection that carries one request.
pub(crate) struct Connection {
    stream: TcpStream,
    /// The bytes that were read but not yet decoded.
    raw: Vec<u8>,
    /// The decoded body bytes that were not yet returned.
    body: Vec<u8>,
    framing: Framing,
}

/// The framing of the rest of the body.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Framing {
    /// This many bytes remain.
    Length(usize),
    /// The body is chunked. This many bytes remain in the current chunk, including its terminator;
    /// 0 between chunks.
    Chunks(usize),
    /// The body ends when the connection closes.
    UntilClose,
    /// The body has ended.
    Ended,
}

/// The result of waiting for a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReceivedLine {
    Line(String),
    Nothing,
    End,
}

impl Connection {
    pub(crate) fn open(address: &str) -> Result<Self, String> {
        let stream = TcpStream::connect(address)
            .map_err(|error| format!("can't connect to {address}: {error}"))?;
        Ok(Self { stream, raw: Vec::new(), body: Vec::new(), framing: Framing::Ended })
    }

    /// Sends the request and returns the response status.
    pub(crate) fn request(
        &mut self,
        path: &str,
        headers: &[(String, String)],
    ) -> Result<u16, String> {
        let host = self.stream.peer_addr().map_err(|error| error.to_string())?;
        let mut head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.stream.write_all(head.as_bytes()).map_err(|error| error.to_string())?;
        let deadline = Instant::now() + RESPONSE_TIME_MAX;
        let length = loop {
            if let Some(at) = self.raw.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at + 4;
            }
            if self.raw.len() > HEAD_BYTES_MAX {
                return Err(String::from("the head of the response is too long"));
            }
            if Instant::now() >= deadline {
                return Err(String::from("the server does not respond"));
            }
            if self.fill()? == ReadOutcome::Closed {
                return Err(String::from("the server closed the connection"));
            }
        };
        let head = self.raw.drain(..length).collect::<Vec<u8>>();
        let (status, framing) = parse_head(&String::from_utf8_lossy(&head))?;
        self.framing = framing;
        Ok(status)
    }

    /// Reads the whole body.
    pub(crate) fn body(&mut self, bytes_max: usize) -> Result<Vec<u8>, String> {
        let deadline = Instant::now() + RESPONSE_TIME_MAX;
        loop {
            self.decode()?;
            if self.framing == Framing::Ended {
                return Ok(std::mem::take(&mut self.body));
            }
            if self.body.len() > bytes_max || Instant::now() >= deadline {
                return Err(String::from("the body of the response does not end"));
            }
            if self.fill()? == ReadOutcome::Closed {
                self.framing = Framing::Ended;
            }
        }
    }

    /// Returns the next line of the body, without its line ending. Waits for it briefly, but not
    /// past the deadline.
    pub(crate) fn line(&mut self, deadline: Instant) -> Result<ReceivedLine, String> {
        loop {
            self.decode()?;
            if let Some(at) = self.body.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.body.drain(..=at).take(at).collect();
                let text = String::from_utf8(line);
                return text.map(ReceivedLine::Line).map_err(|error| error.to_string());
            }
            if self.framing == Framing::Ended {
                return Ok(ReceivedLine::End);
            }
            if self.body.len() > LINE_BYTES_MAX {
                return Err(String::from("the server sent a line that is too long"));
            }
            match self.fill()? {
                ReadOutcome::Some => {}
                ReadOutcome::Nothing => return Ok(ReceivedLine::Nothing),
                ReadOutcome::Closed => self.framing = Framing::Ended,
            }
            if Instant::now() >= deadline {
                return Ok(ReceivedLine::Nothing);
            }
        }
    }

    fn fill(&mut self) -> Result<ReadOutcome, String> {
        self.stream.set_read_timeout(Some(WAIT)).map_err(|error| error.to_string())?;
        let mut buffer = [0; 64 << 10];
        match self.stream.read(&mut buffer) {
            Ok(0) => Ok(ReadOutcome::Closed),
            Ok(length) => {
                self.raw.extend(buffer.iter().take(length));
                Ok(ReadOutcome::Some)
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {
                    Ok(ReadOutcome::Nothing)
                }
                _ => Err(format!("the connection broke: {error}")),
            },
        }
    }

    /// Decodes the bytes read so far into the body.
    fn decode(&mut self) -> Result<(), String> {
        loop {
            match self.framing {
                Framing::Ended => return Ok(()),
                Framing::UntilClose => {
                    self.body.append(&mut self.raw);
                    return Ok(());
                }
                Framing::Length(left) => {
                    let taken = left.min(self.raw.len());
                    self.body.extend(self.raw.drain(..taken));
                    let left = left - taken;
                    self.framing = if left == 0 { Framing::Ended } else { Framing::Length(left) };
                    if left > 0 || taken == 0 {
                        return Ok(());
                    }
                }
                Framing::Chunks(0) => {
                    let Some(end) = self.raw.windows(2).position(|bytes| bytes == b"\r\n") else {
                        return Ok(());
                    };
                    let head: Vec<u8> = self.raw.drain(..end + 2).collect();
                    let size =
                        chunk_size(&head).ok_or("the response has a chunk without a size")?;
                    // The terminator counts as part of the chunk.
                    self.framing =
                        if size == 0 { Framing::Ended } else { Framing::Chunks(size + 2) };
                }
                Framing::Chunks(left) => {
                    if self.raw.is_empty() {
                        return Ok(());
                    }
                    let taken = left.min(self.raw.len());
                    let content = taken.min(left.saturating_sub(2));
                    self.body.extend(self.raw.drain(..taken).take(content));
                    self.framing = Framing::Chunks(left - taken);
                }
            }
        }
    }
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum ReadOutcome {
    Some,
    Nothing,
    Closed,
}

fn chunk_size(head: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(head).ok()?;
    let digits = text.split([';', '\r']).next()?.trim();
    usize::from_str_radix(digits, 16).ok().filter(|size| *size <= LINE_BYTES_MAX)
}

fn parse_head(head: &str) -> Result<(u16, Framing), String> {
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let status = status.ok_or("the server does not speak HTTP")?;
    let mut framing = Framing::UntilClose;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
            framing = Framing::Chunks(0);
        } else if name.eq_ignore_ascii_case("content-length") {
            framing = match value.parse().map_err(|_| "the response has no length")? {
                0 => Framing::Ended,
                length => Framing::Length(length),
            };
        }
    }
    Ok((status, framing))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Connects to a server that sends these parts to its first client.
    fn serve(parts: &'static [&'static str]) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request);
            for part in parts {
                stream.write_all(part.as_bytes()).unwrap();
            }
        });
        Connection::open(&address).unwrap()
    }

    fn lines(parts: &'static [&'static str]) -> Vec<String> {
        let mut connection = serve(parts);
        assert_eq!(connection.request("/", &[]), Ok(200));
        let mut lines = Vec::new();
        loop {
            match connection.line(Instant::now() + RESPONSE_TIME_MAX).unwrap() {
                ReceivedLine::Line(line) => lines.push(line),
                ReceivedLine::Nothing => {}
                ReceivedLine::End => return lines,
            }
        }
    }

    #[test]
    fn lines_are_put_together_of_chunks() {
        const HEAD: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(lines(&[HEAD, "3\r\na\nb\r\n2\r\nc\n\r", "\n0\r\n\r\n"]), ["a", "bc"]);
        assert_eq!(lines(&["HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na\nb\n"]), ["a", "b"]);
        assert_eq!(lines(&["HTTP/1.1 200 OK\r\n\r\na\nb"]), ["a"]);
    }

    #[test]
    fn what_is_not_http_is_refused() {
        assert!(serve(&["hello\r\n\r\n"]).request("/", &[]).unwrap_err().contains("HTTP"));
        assert!(serve(&[]).request("/", &[]).unwrap_err().contains("closed"));
        let mut connection = serve(&["HTTP/1.1 404 x\r\nContent-Length: 3\r\n\r\nabc"]);
        assert_eq!(connection.request("/", &[]), Ok(404));
        assert_eq!(connection.body(10).unwrap(), b"abc");
    }
}
