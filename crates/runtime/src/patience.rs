//! A connection that waits for its peer only so long; its owner says how long.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The deadlines of a connection of type `S`. An error that it gives is the connection's, whoever
/// reads or writes.
pub trait Patience<S> {
    /// A read brought `bytes`; 0 is the end.
    ///
    /// # Errors
    ///
    /// An error if these bytes came too late.
    fn received(&mut self, bytes: usize) -> io::Result<()>;

    /// A read waits. Ready with an error once it has waited for too long.
    fn poll_read_late(&mut self, context: &mut Context<'_>) -> Poll<io::Error>;

    /// The peer took something of a write, or all of it.
    fn taken(&mut self);

    /// A write to `stream` waits. Ready with an error once it has waited for too long.
    fn poll_write_late(&mut self, stream: &S, context: &mut Context<'_>) -> Poll<io::Error>;
}

/// A connection with deadlines.
#[derive(Debug)]
pub struct Patient<S, P> {
    stream: S,
    patience: P,
}

impl<S, P: Patience<S>> Patient<S, P> {
    /// A connection that has waited for nothing yet.
    pub fn new(stream: S, patience: P) -> Self {
        Self { stream, patience }
    }

    /// The connection itself.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// The deadlines of the connection.
    pub fn patience(&self) -> &P {
        &self.patience
    }

    /// Passes on what a write came to.
    fn poll_written<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.patience.taken();
            return written;
        }
        Poll::Ready(Err(ready!(self.patience.poll_write_late(&self.stream, context))))
    }
}

impl<S: AsyncRead + Unpin, P: Patience<S> + Unpin> AsyncRead for Patient<S, P> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (this, before) = (self.get_mut(), buffer.filled().len());
        match Pin::new(&mut this.stream).poll_read(context, buffer) {
            Poll::Ready(Ok(())) => {
                Poll::Ready(this.patience.received(buffer.filled().len() - before))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => this.patience.poll_read_late(context).map(Err),
        }
    }
}

impl<S: AsyncWrite + Unpin, P: Patience<S> + Unpin> AsyncWrite for Patient<S, P> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.poll_written(written, context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, parts);
        this.poll_written(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(context);
        this.poll_written(flushed, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let ended = Pin::new(&mut this.stream).poll_shutdown(context);
        this.poll_written(ended, context)
    }
}
