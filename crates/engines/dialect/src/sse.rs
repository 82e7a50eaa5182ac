//! Reader of server-sent events, fed with bytes as they come.
//!
//! The reader returns the data of events; it skips names, ids and comments. Source: the event
//! stream format of the HTML standard, section 9.2.6; a lone carriage return does not end a line
//! here, and no engine sends one.

use std::ops::Range;

/// An event exceeds the reader's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {limit} bytes")]
pub(crate) struct TooLong {
    limit: usize,
}

/// Place of the current event's data.
#[derive(Debug)]
enum Data {
    /// No data line yet.
    None,
    /// One line, still in the buffer. Nearly every event is one line, which is never copied.
    Line(Range<usize>),
    /// Several lines, put together in [`Reader::joined`].
    Lines,
}

/// Cuts a stream of bytes into the data of its events.
#[derive(Debug)]
pub(crate) struct Reader {
    buffer: Vec<u8>,
    /// Start of the current line; everything before it has been used.
    line: usize,
    /// Start of the bytes that were not searched for an end of line yet.
    scanned: usize,
    data: Data,
    joined: Vec<u8>,
    limit: usize,
}

impl Reader {
    /// A reader of events up to `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        let (buffer, joined) = (Vec::new(), Vec::new());
        Self { buffer, line: 0, scanned: 0, data: Data::None, joined, limit }
    }

    /// Takes bytes as they arrive.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let used = match &self.data {
            Data::Line(data) => data.start,
            Data::None | Data::Lines => self.line,
        };
        // Moving what is left costs little only while it is less than what goes.
        if used > 0 && used >= self.buffer.len() - used {
            self.buffer.drain(..used);
            self.line -= used;
            self.scanned -= used;
            if let Data::Line(data) = &mut self.data {
                *data = data.start - used..data.end - used;
            }
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The data of the next complete event; `None` while none is complete.
    ///
    /// # Errors
    ///
    /// [`TooLong`] where an event exceeds the limit; the stream is of no use after it.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, TooLong> {
        while let Some(end) = memchr::memchr(b'\n', &self.buffer[self.scanned..]) {
            let end = self.scanned + end;
            let start = std::mem::replace(&mut self.line, end + 1);
            self.scanned = end + 1;
            let end = end - usize::from(end > start && self.buffer[end - 1] == b'\r');
            if start == end {
                match std::mem::replace(&mut self.data, Data::None) {
                    Data::None => continue,
                    Data::Line(data) => return Ok(Some(&self.buffer[data])),
                    Data::Lines => return Ok(Some(&self.joined)),
                }
            }
            self.take_line(start..end)?;
        }
        self.scanned = self.buffer.len();
        let held = self.buffer.len() - self.line + self.data_len();
        if held > self.limit { Err(TooLong { limit: self.limit }) } else { Ok(None) }
    }

    fn take_line(&mut self, line: Range<usize>) -> Result<(), TooLong> {
        let Some(value) = value_of_data(&self.buffer[line.clone()]) else { return Ok(()) };
        let value = line.end - value..line.end;
        if self.data_len() + value.len() > self.limit {
            return Err(TooLong { limit: self.limit });
        }
        match &self.data {
            Data::None => {
                self.data = Data::Line(value);
                return Ok(());
            }
            Data::Line(first) => {
                self.joined.clear();
                self.joined.extend_from_slice(&self.buffer[first.clone()]);
                self.data = Data::Lines;
            }
            Data::Lines => {}
        }
        self.joined.push(b'\n');
        self.joined.extend_from_slice(&self.buffer[value]);
        Ok(())
    }

    fn data_len(&self) -> usize {
        match &self.data {
            Data::None => 0,
            Data::Line(data) => data.len(),
            Data::Lines => self.joined.len(),
        }
    }
}

/// Length of the value that ends a `data` line; `None` for other lines.
fn value_of_data(line: &[u8]) -> Option<usize> {
    let rest = line.strip_prefix(b"data")?;
    if rest.is_empty() {
        return Some(0);
    }
    let value = rest.strip_prefix(b":")?;
    Some(value.strip_prefix(b" ").unwrap_or(value).len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const LIMIT: usize = 128;

    /// All events of a stream that comes in these pieces.
    fn read(pieces: &[&[u8]]) -> Result<Vec<Vec<u8>>, TooLong> {
        let mut reader = Reader::new(LIMIT);
        let mut events = Vec::new();
        for piece in pieces {
            reader.push(piece);
            while let Some(event) = reader.next()? {
                events.push(event.to_vec());
            }
        }
        Ok(events)
    }

    /// The obvious reader of a stream that is there as a whole.
    fn model(stream: &[u8]) -> Vec<Vec<u8>> {
        let mut lines: Vec<&[u8]> = stream.split(|byte| *byte == b'\n').collect();
        lines.pop(); // What follows the last end of line is not complete.
        let (mut events, mut data) = (Vec::new(), Vec::new());
        for line in lines {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                if !data.is_empty() {
                    events.push(data.join(&b'\n'));
                }
                data.clear();
            } else if line == b"data" {
                data.push(Vec::new());
            } else if let Some(value) = line.strip_prefix(b"data:") {
                data.push(value.strip_prefix(b" ").unwrap_or(value).to_vec());
            }
        }
        events
    }

    #[test]
    fn reads_the_data_of_events_and_skips_the_rest() {
        let stream = b": hello\nevent: x\ndata: one\nid: 7\n\n\n\r\ndata:two\r\n\r\ndata: a\ndata\ndata:  b\n\ndatax: no\n\ndata: cut";
        let events: [&[u8]; 3] = [b"one", b"two", b"a\n\n b"];
        assert_eq!(read(&[stream]).unwrap(), events);
    }

    #[test]
    fn an_event_beyond_the_limit_ends_the_stream_however_it_comes() {
        let fits = [b"data: ".as_slice(), &[b'x'; LIMIT - 6], b"\n\n"].concat();
        assert_eq!(read(&[&fits]).unwrap().len(), 1);
        let endless = [b'x'; LIMIT + 1];
        assert_eq!(read(&[&endless]), Err(TooLong { limit: LIMIT }));
        let many = b"data: 1234567890\n".repeat(13);
        assert_eq!(read(&[&many]), Err(TooLong { limit: LIMIT }));
        let bytewise: Vec<&[u8]> = many.chunks(1).collect();
        assert_eq!(read(&bytewise), Err(TooLong { limit: LIMIT }));
    }

    fn streams() -> impl Strategy<Value = Vec<u8>> {
        let lines: [&[u8]; 8] = [
            b"data: x",
            b"data:",
            b"data",
            b"data:  {\"a\":1}",
            b": ping",
            b"event: e",
            b"",
            b"\r",
        ];
        let ends: [&[u8]; 3] = [b"\n", b"\r\n", b""];
        let (line, end) =
            (proptest::sample::select(lines.to_vec()), proptest::sample::select(ends.to_vec()));
        vec((line, end), 0..6).prop_map(|lines| {
            lines.into_iter().flat_map(|(line, end)| [line, end].concat()).collect()
        })
    }

    proptest! {
        #[test]
        fn any_split_gives_the_events_of_the_whole(
            stream in streams(),
            cuts in vec(0_usize..48, 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < stream.len()).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut start = 0;
            for cut in cuts {
                pieces.push(&stream[start..cut]);
                start = cut;
            }
            pieces.push(&stream[start..]);
            prop_assert_eq!(read(&pieces).unwrap(), model(&stream));
        }

        #[test]
        fn no_bytes_make_it_panic(pieces in vec(vec(any::<u8>(), 0..40), 0..8)) {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let _ = read(&pieces);
        }
    }
}
