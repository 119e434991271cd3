//! A running door and a client.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use galatea_fakes::{FakeServer, HeldRequest};
use galatea_http::{HttpOptions, RunningDoor, start_inference_endpoint};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Threads that each drive a runtime, as the server's I/O threads do.
pub(crate) struct Workers {
    pub(crate) handles: Vec<Handle>,
    threads: Vec<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Workers {
    pub(crate) fn start(count: usize) -> Self {
        let mut workers = Self { handles: Vec::new(), threads: Vec::new() };
        for _ in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            workers.handles.push(runtime.handle().clone());
            let (stop, stopped) = oneshot::channel();
            let thread = std::thread::spawn(move || {
                let _ = runtime.block_on(stopped);
            });
            workers.threads.push((stop, thread));
        }
        workers
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for (stop, thread) in self.threads.drain(..) {
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}

/// A door, along with the server behind it.
pub(crate) struct Server {
    pub(crate) door: RunningDoor,
    pub(crate) fake: Arc<FakeServer>,
    pub(crate) held: mpsc::Receiver<HeldRequest>,
    pub(crate) workers: Workers,
}

pub(crate) fn listener() -> TcpListener {
    TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap()
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(HttpOptions::default())
    }

    pub(crate) fn with(options: HttpOptions) -> Self {
        Self::at(listener(), options)
    }

    pub(crate) fn at(listener: TcpListener, options: HttpOptions) -> Self {
        Self::on(Workers::start(2), listener, options)
    }

    pub(crate) fn on(workers: Workers, listener: TcpListener, options: HttpOptions) -> Self {
        let (fake, held) = FakeServer::new();
        let fake = Arc::new(fake);
        let door = start_inference_endpoint(
            &workers.handles,
            listener,
            fake.clone(),
            fake.clone(),
            options,
        )
        .unwrap();
        Self { door, fake, held, workers }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.door.address())
    }

    /// Sends one request on a separate connection.
    pub(crate) fn call(&self, method: &str, path: &str, body: &str) -> Response {
        let mut client = self.connect();
        client.request(method, path, "", body.as_bytes());
        client.response()
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.call("GET", path, "")
    }

    /// Checks the status and body of the response to a request.
    #[track_caller]
    pub(crate) fn check(&self, method: &str, path: &str, body: &str, code: u16, expected: &str) {
        let response = self.call(method, path, body);
        assert_eq!((response.code, response.text()), (code, expected), "{method} {path}");
    }

    /// Returns the next held request.
    pub(crate) fn next_held(&self) -> HeldRequest {
        self.held.recv_timeout(PATIENCE).expect("no request was held")
    }
}

/// The time that a test waits before it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A connection.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// Returns the value of a header. Names are case-sensitive.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let value = |line: &'_ str| line.split_once(": ").map(|(n, v)| (n.to_owned(), v.len()));
        self.head.lines().find_map(|line| {
            let (found, length) = value(line)?;
            (found == name).then(|| &line[line.len() - length..])
        })
    }
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    /// Sends bytes that the server may refuse to read.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.get_mut().write_all(bytes.as_ref()).is_ok()
    }

    /// Closes the sending side.
    pub(crate) fn finish_sending(&mut self) {
        self.stream.get_ref().shutdown(Shutdown::Write).unwrap();
    }

    /// Waits until the server has sent something, and leaves it unread.
    pub(crate) fn wait_for_bytes(&mut self) {
        assert_ne!(self.stream.get_ref().peek(&mut [0]).unwrap(), 0);
    }

    pub(crate) fn request(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) {
        self.send(request(method, path, headers, body));
    }

    pub(crate) fn response(&mut self) -> Response {
        self.try_response().expect("the connection was closed")
    }

    /// Returns the head of the next response.
    pub(crate) fn response_head(&mut self) -> String {
        self.try_head().expect("the connection was closed")
    }

    fn try_head(&mut self) -> Option<String> {
        let mut head = String::new();
        loop {
            let before = head.len();
            match self.stream.read_line(&mut head) {
                Ok(0) => return None,
                Ok(_) if &head[before..] == "\r\n" => return Some(head),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Returns the next response, or `None` if the connection was closed.
    pub(crate) fn try_response(&mut self) -> Option<Response> {
        let head = self.try_head()?;
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut response = Response { code, head, body: Vec::new() };
        let length = response.header("Content-Length").map_or(0, |text| text.parse().unwrap());
        response.body.resize(length, 0);
        self.stream.read_exact(&mut response.body).unwrap();
        Some(response)
    }

    /// Returns the next chunk of a chunked body, or `None` after the last one.
    pub(crate) fn chunk(&mut self) -> Option<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        let length = usize::from_str_radix(line.trim_end(), 16).expect("no size of a chunk");
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes).unwrap();
        assert!(bytes.ends_with(b"\r\n"));
        bytes.truncate(length);
        (length > 0).then(|| String::from_utf8(bytes).unwrap())
    }

    /// Returns everything that arrives until the server closes the connection.
    pub(crate) fn rest(&mut self) -> String {
        let mut text = String::new();
        self.stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Returns true if the server closes the connection without sending more.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

pub(crate) fn request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Returns the body of an inference request with one byte.
pub(crate) fn infer_body(value: u8) -> String {
    format!(r#"{{"inputs":[{{"name":"x","datatype":"UINT8","shape":[1],"data":[{value}]}}]}}"#)
}

/// Returns the response of `model` to [`infer_body`].
pub(crate) fn infer_response(model: &str, value: u8) -> String {
    format!(
        r#"{{"model_name":"{model}","model_version":"1","outputs":[{{"name":"x","datatype":"UINT8","shape":[1],"data":[{value}]}}]}}"#
    )
}
