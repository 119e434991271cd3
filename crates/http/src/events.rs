//! Response bodies that consist of events.

use std::task::{Context, Poll};

use bytes::Bytes;
use galatea_dashboard::Watcher;

use crate::event_stream::{EventStream, EventsLost};
use crate::traffic::TrafficStream;

/// The events of a response.
pub(crate) enum Events {
    /// The responses to a generate request.
    Responses(EventStream),
    /// The server's events.
    Frames(Watcher),
    /// The requests that a model receives.
    Traffic(TrafficStream),
}

impl Events {
    /// Returns the next event, or `None` after the last one.
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
