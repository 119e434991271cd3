//! Binds listeners to addresses.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use galatea_infer::Status;
use socket2::{Domain, Protocol, Socket, Type};

use crate::flags::DoorSettings;

/// The maximum number of connections waiting to be accepted.
const BACKLOG: i32 = 1024;

/// A listener, with its address for the log.
#[derive(Debug)]
pub(crate) struct Listener {
    /// The socket, in non-blocking mode.
    pub(crate) socket: TcpListener,
    /// The address as configured, with the port that was assigned.
    pub(crate) display_address: String,
}

/// Binds an endpoint.
pub(crate) fn bind(address: &str, door: &DoorSettings) -> Result<Listener, Status> {
    let display = |port: u16| format!("{address}:{port}");
    let bound = resolve(address, door.port)
        .and_then(|at| listen(at, door.reuse_port))
        .and_then(|socket| Ok((socket.local_addr()?.port(), socket)));
    match bound {
        Ok((port, socket)) => Ok(Listener { socket, display_address: display(port) }),
        // Triton's message, including its trailing space.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Err(Status::unavailable(format!("Socket '{}' already in use ", display(door.port))))
        }
        Err(error) => {
            let address = display(door.port);
            Err(Status::unavailable(format!("can't listen at {address}: {error}")))
        }
    }
}

fn resolve(address: &str, port: u16) -> io::Result<SocketAddr> {
    let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
    (bare, port)
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::other("the name stands for no address"))
}

fn listen(address: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restarted server must not wait for its old connections.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use galatea_infer::Code;

    use crate::flags::Settings;

    use super::*;

    fn door(port: u16, reuse_port: bool) -> DoorSettings {
        DoorSettings { port, reuse_port, ..Settings::default().metrics }
    }

    #[test]
    fn the_address_is_shown_with_the_port_it_got() {
        let listener = bind("127.0.0.1", &door(0, false)).unwrap();
        let port = listener.socket.local_addr().unwrap().port();
        assert_ne!(port, 0);
        assert_eq!(listener.display_address, format!("127.0.0.1:{port}"));
    }

    #[test]
    // row: CLI-12
    fn a_port_is_shared_only_if_all_agree() {
        let first = bind("127.0.0.1", &door(0, true)).unwrap();
        let port = first.socket.local_addr().unwrap().port();
        bind("127.0.0.1", &door(port, true)).unwrap();
        let status = bind("127.0.0.1", &door(port, false)).unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.message(), format!("Socket '127.0.0.1:{port}' already in use "));
    }

    #[test]
    fn unknown_addresses_are_refused() {
        assert!(bind("no such host", &door(0, false)).is_err());
        assert!(bind("", &door(0, false)).is_err());
    }
}
