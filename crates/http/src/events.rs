//! The bodies of responses that are events.

use std::task::{Context, Poll};

use bytes::Bytes;
use galatea_dashboard::Watcher;

use crate::event_stream::{EventStream, EventsLost};
use crate::traffic::TrafficStream;

/// The events of a response.
pub(crate) enum Events {
    /// The responses to a generate request.
    Responses(EventStream),
    /// The events of the server.
    Frames(Watcher),
    /// The requests that a model gets.
    Traffic(TrafficStream),
}

impl Events {
    /// The next event; `None` behind the last.
    pub(crate) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, EventsLost>>> {
        match self {
            Self::Responses(stream) => stream.poll_next(context),
            Self::Frames(watcher) => watcher.poll_next(context).map(|event| event.map(Ok)),
            Self::Traffic(stream) => stream.poll_next(context).map(|lines| lines.map(Ok)),
        }
    }
}
