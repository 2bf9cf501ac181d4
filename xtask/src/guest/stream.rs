//! A stream from the guest: the command's output, with lines for us in between.

/// Separates our lines from the command's output. Each begins with a mark that the command does not know, and ends with
/// its line.
pub struct Splitter {
    mark: Vec<u8>,
    pending: Vec<u8>,
}

impl Splitter {
    pub fn new(mark: &str) -> Self {
        Self { mark: mark.as_bytes().to_vec(), pending: Vec::new() }
    }

    /// Returns the bytes still held back, once the stream has ended.
    pub fn finish(self) -> Vec<u8> {
        self.pending
    }

    /// Takes bytes of the stream; returns the command's bytes, and our lines without their marks. Bytes that may turn
    /// out to be the beginning of a mark are held back.
    pub fn push(&mut self, bytes: &[u8]) -> (Vec<u8>, Vec<String>) {
        self.pending.extend_from_slice(bytes);
        let (mut output, mut notes) = (Vec::new(), Vec::new());
        loop {
            let found = self.pending.windows(self.mark.len()).position(|window| window == self.mark);
            let Some(at) = found else {
                let keep = (0..self.mark.len().min(self.pending.len() + 1)).rev();
                let keep = keep.into_iter().find(|&len| self.pending.ends_with(&self.mark[..len])).unwrap_or(0);
                output.extend(self.pending.drain(..self.pending.len() - keep));
                return (output, notes);
            };
            output.extend(self.pending.drain(..at));
            let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') else {
                return (output, notes);
            };
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            notes.push(String::from_utf8_lossy(&line[self.mark.len()..end]).into_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &str = "<ab<abc>";

    #[test]
    fn notes_are_found_however_the_stream_is_cut() {
        let stream = format!("one\n{MARK}ready\ntwo <ab{MARK}exit 3\n{MARK}end\nrest <a<ab");
        for cut in 1..stream.len() {
            let mut splitter = Splitter::new(MARK);
            let (mut output, mut notes) = (Vec::new(), Vec::new());
            for piece in stream.as_bytes().chunks(cut) {
                let (bytes, found) = splitter.push(piece);
                output.extend(bytes);
                notes.extend(found);
            }
            output.extend(splitter.finish());
            assert_eq!(String::from_utf8(output).unwrap(), "one\ntwo <abrest <a<ab", "in pieces of {cut}");
            assert_eq!(notes, ["ready", "exit 3", "end"], "in pieces of {cut}");
        }
    }

    #[test]
    fn what_begins_no_mark_is_not_kept_back() {
        let mut splitter = Splitter::new(MARK);
        assert_eq!(splitter.push(b"progress 10%").0, b"progress 10%");
        assert_eq!(splitter.push(b"\r<ab").0, b"\r");
        assert_eq!(splitter.push(b"d").0, b"<abd");
    }
}
