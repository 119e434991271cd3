//! An echo server for any model, for trying out clients and for measuring the gRPC door in
//! isolation.
//!
//! Usage: `echo ADDRESS [inline]`. With `inline`, the server responds on the I/O thread.

use std::sync::{Arc, mpsc};

use galatea_fakes::{FakeServer, HeldRequest, echo};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| String::from("127.0.0.1:8001"));
    let server = Arc::new(match arguments.next().as_deref() {
        Some("inline") => FakeServer::plain(),
        _ => on_another_thread(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let workers = [runtime.handle().clone()];
    let listener = std::net::TcpListener::bind(address)?;
    let options = galatea_grpc::GrpcOptions::default();
    let door = galatea_grpc::start(&workers, listener, server.clone(), server, options)?;
    runtime.block_on(async {
        let _ = tokio::signal::ctrl_c().await;
        door.begin_drain();
        door.drained().await;
    });
    Ok(())
}

/// Responds on a separate thread, as the real server does.
fn on_another_thread() -> FakeServer {
    let (work, inbox) = mpsc::channel::<HeldRequest>();
    std::thread::spawn(move || {
        for (request, sender) in inbox {
            sender.send_final(Ok(echo(request)));
        }
    });
    // A request that can't be sent is dropped together with its sender, which then sends an error.
    FakeServer::plain().holding_all(move |request| drop(work.send(request)))
}
