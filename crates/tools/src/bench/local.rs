//! A server on this machine: either `galatea serve`, started in a separate process for a
//! measurement, or a process that is already listening. Its CPU time is measured separately from
//! that of the load generator.

use std::io::{BufRead, BufReader};
use std::net::ToSocketAddrs;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use galatea_load::{Protocol, Target};
use serde_json::Value;

/// The unit of CPU times in `/proc`, which is the same on all Linux machines.
const TICKS_PER_SECOND: u64 = 100;

/// A process that serves models. Dropping this value ends it.
pub(crate) struct LocalServer {
    /// The endpoints on which the server listens.
    pub(crate) targets: Vec<Target>,
    /// The process ID.
    pub(crate) process: u32,
    child: Child,
    /// The pipe whose closing ends the server, even if this process is killed.
    input: Option<ChildStdin>,
}

impl LocalServer {
    /// Starts a server and waits until its models are ready.
    pub(crate) fn start(
        models: &[String],
        flags: &[String],
        protocols: &[Protocol],
    ) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = Command::new(program)
            .args(["serve", "--json", "--until-input-ends"])
            .args(["--http-address=127.0.0.1", "--grpc-address=127.0.0.1"])
            .args(["--http-port=0", "--grpc-port=0", "--metrics-port=0"])
            .args(flags)
            .arg("--")
            .args(models)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Errors arrive as JSON.
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("can't start a server: {error}"))?;
        let input = child.stdin.take();
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            let _ = BufReader::new(output).read_line(&mut line);
        }
        let process = child.id();
        let mut server = Self { targets: Vec::new(), process, child, input };
        server.targets = targets(&line, protocols)?;
        Ok(server)
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        drop(self.input.take());
        // The server's exit timeout limits this wait.
        let _ = self.child.wait();
    }
}

/// Parses the server's endpoints from the line that it prints when ready.
fn targets(line: &str, protocols: &[Protocol]) -> Result<Vec<Target>, String> {
    let document: Value = serde_json::from_str(line).map_err(|_| {
        String::from("the server ended; galatea serve with the same model says why")
    })?;
    if let Some(error) = document["error"].as_str() {
        let models = document["models"].as_array().map_or(&[][..], Vec::as_slice);
        let reasons = models.iter().filter_map(|model| {
            let (name, reason) = (model["name"].as_str()?, model["reason"].as_str()?);
            Some(format!("{name}: {reason}"))
        });
        let reasons: Vec<String> = reasons.collect();
        return Err(if reasons.is_empty() { error.to_owned() } else { reasons.join("\n") });
    }
    let target = |protocol: &Protocol| {
        let address = match protocol {
            Protocol::Http => document["http"].as_str()?.strip_prefix("http://")?,
            Protocol::Grpc => document["grpc"].as_str()?,
        };
        Some(Target { protocol: *protocol, address: address.to_owned() })
    };
    let targets: Vec<Target> = protocols.iter().filter_map(target).collect();
    if targets.is_empty() {
        return Err(String::from("the server listens at no endpoint without TLS"));
    }
    Ok(targets)
}

/// The process that listens on an address of this machine, if this user is permitted to see it.
pub(crate) fn listening_process(address: &str) -> Option<u32> {
    let mut addresses = address.to_socket_addrs().ok()?;
    let port = addresses.find(|address| address.ip().is_loopback())?.port();
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
    let sockets: Vec<String> =
        tables.iter().flatten().flat_map(|table| listening_sockets(table, port)).collect();
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.find(|process| {
        let Ok(files) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
        let mut links = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
        links.any(|link| sockets.iter().any(|socket| link.as_os_str() == socket.as_str()))
    })
}

/// The sockets in a kernel table that listen on a port, in the form of their link names.
fn listening_sockets(table: &str, port: u16) -> Vec<String> {
    const LISTENING: &str = "0A";
    let end = format!(":{port:04X}");
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let sockets = lines.filter_map(|fields| match fields.as_slice() {
        [_, local, _, LISTENING, _, _, _, _, _, inode, ..] if local.ends_with(&end) => {
            Some(format!("socket:[{inode}]"))
        }
        _ => None,
    });
    sockets.collect()
}

/// The CPU time that a process has used.
pub(crate) fn cpu_time(process: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may contain blanks.
    let (_, fields) = text.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let (user, system) = (times.next()?.ok()?, times.next()?.ok()?);
    Some(Duration::from_millis((user + system) * 1_000 / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_server_says_where_it_is_and_another_why_not() {
        let both = [Protocol::Http, Protocol::Grpc];
        let found = targets("{\"http\":\"http://a:1\",\"grpc\":null}", &both).unwrap();
        assert_eq!(found, [Target { protocol: Protocol::Http, address: String::from("a:1") }]);
        let failed = "{\"error\":\"e\",\"models\":[{\"name\":\"m\",\"reason\":\"r\"}]}";
        assert_eq!(targets(failed, &both), Err(String::from("m: r")));
        assert_eq!(targets("{\"error\":\"e\"}", &both), Err(String::from("e")));
        assert!(targets("", &both).unwrap_err().contains("galatea serve"));
    }

    #[test]
    fn the_process_that_listens_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(listening_process(&address), Some(std::process::id()));
        assert_eq!(listening_process("192.0.2.1:80"), None);
        let table = "  0: 0100007F:1F90 00000000:0000 0A 0:0 0:0 0 0 0 42 1\n  \
                       1: 0100007F:1F90 0100007F:0001 01 0:0 0:0 0 0 0 43 1\n";
        assert_eq!(listening_sockets(table, 8080), ["socket:[42]"]);
        assert!(listening_sockets(table, 8081).is_empty());
    }

    #[test]
    fn this_process_has_taken_some_time() {
        assert!(cpu_time(std::process::id()).is_some());
        assert_eq!(cpu_time(u32::MAX), None);
    }
}
