//! Messages that a worker sends on its second socket.

use std::sync::Arc;

use galatea_infer::{Backpressure, LogLevel, Status};
use galatea_stdx::WakeBatch;

use super::calls::CallSocket;
use super::{Worker, WorkerLoss};
use crate::held::SentResponse;
use crate::wire::{Frame, FrameSplitter, MalformedFrame, SecondSocketFrame, WireResponse, to_b};

impl Worker {
    /// Reads and handles the available messages.
    pub(crate) fn read_messages(
        self: &Arc<Self>,
        reader: &mut FrameSplitter,
    ) -> Result<(), WorkerLoss> {
        self.link.b.read(reader).map_err(|_| WorkerLoss::Ended)?;
        // Responses that arrive together wake each receiver once.
        let _wake_batch = WakeBatch::begin();
        while let Some(body) = reader.next().map_err(WorkerLoss::Malformed)? {
            let message = SecondSocketFrame::decode(body).map_err(WorkerLoss::Malformed)?;
            self.serve(message).map_err(WorkerLoss::Malformed)?;
            self.progress.served_one();
        }
        Ok(())
    }

    fn serve(self: &Arc<Self>, message: SecondSocketFrame) -> Result<(), MalformedFrame> {
        match message {
            SecondSocketFrame::Log { level, file, line, message } => {
                self.model.server.log(log_level(level), &file, line, &message);
            }
            SecondSocketFrame::Response { key, is_final, response } => {
                self.pass_on(key, is_final, response);
            }
            SecondSocketFrame::Call(call) => self.begin_call(call, CallSocket::Others),
            SecondSocketFrame::CancelCall(id) => self.cancel_call(id),
            SecondSocketFrame::Release(offsets) => {
                if !offsets.iter().all(|offset| self.arenas.inputs.release(*offset)) {
                    return Err(MalformedFrame("a block that is not in use"));
                }
            }
            SecondSocketFrame::Control { id, document } => self.begin_control(id, document),
            SecondSocketFrame::Ready { question, answer } => {
                self.take_readiness(question, answer)?
            }
            SecondSocketFrame::Metric { id, document } => {
                let mut metrics = self.metrics.lock("serve a metric");
                let done = metrics.serve(&*self.model.server, &document);
                drop(metrics);
                if id != 0 {
                    self.reply(id, done);
                }
            }
        }
        Ok(())
    }

    /// Delivers a response from a sender in the model.
    fn pass_on(self: &Arc<Self>, key: u64, is_final: bool, response: WireResponse) {
        let Some(id) = self.held.id_of(key) else { return };
        let blocks: Vec<u64> = response.output_blocks().collect();
        let result = self.response(&id, response);
        self.free_outputs(&blocks);
        let is_decoupled = self.model.is_decoupled;
        let congested = self.held.respond(key, SentResponse { result, is_final, is_decoupled });
        if let Some(flow) = congested {
            self.pause(key, flow);
        }
    }

    /// Pauses a request's sender until the client has read more.
    fn pause(self: &Arc<Self>, key: u64, flow: Backpressure) {
        if !self.held.begin_pause(key) {
            return;
        }
        self.send_key(to_b::PAUSE, key);
        let worker = Arc::downgrade(self);
        flow.when_free(move || {
            if let Some(worker) = worker.upgrade() {
                worker.held.end_pause(key);
                worker.send_key(to_b::RESUME, key);
            }
        });
    }

    /// Sends a frame that concerns a request.
    pub(crate) fn send_key(&self, kind: u8, key: u64) {
        let mut frame = Frame::new(kind);
        frame.u64(key);
        self.link.send_b(&frame.finish());
    }

    /// Starts a thread for a load or unload, which may take a long time and may wait for this
    /// model.
    fn begin_control(self: &Arc<Self>, id: u64, document: String) {
        let worker = self.clone();
        let thread = std::thread::Builder::new().name(String::from("python-control"));
        let started = thread.spawn(move || {
            let done = crate::messages::control::perform(&*worker.model.server, &document);
            worker.reply(id, done);
        });
        if let Err(error) = started {
            self.reply(
                id,
                Err(Status::unavailable(format!("no thread could be started: {error}"))),
            );
        }
    }

    fn reply(&self, id: u64, result: Result<String, Status>) {
        let mut frame = Frame::new(to_b::REPLY);
        frame.u64(id);
        match result {
            Ok(document) => {
                frame.u8(1);
                frame.text(&document);
            }
            Err(status) => {
                frame.u8(0);
                frame.status(&status);
            }
        }
        self.link.send_b(&frame.finish());
    }
}

const fn log_level(number: u8) -> LogLevel {
    match number {
        0 => LogLevel::Verbose(1),
        1 => LogLevel::Info,
        2 => LogLevel::Warning,
        _ => LogLevel::Error,
    }
}
