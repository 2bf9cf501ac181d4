//! Operations of one engine that are in flight, and their completion.

use sinew_fabric::verbs::{Gather, Scatter, Slice};
use sinew_mem::{AllocError, MessageBuffer};

use super::batch::MergeMethod;
use super::error::FailureCause;
use super::path::{Done, Path, PathJob};
use super::state::{Buffer, TakenRequest};

const NONE: u32 = u32::MAX;

/// A finished request that was alone in its operation.
#[derive(Clone, Copy)]
pub(super) struct LoneDone {
    pub key: u32,
    pub posted_ns: u64,
}

/// A finished request.
pub(super) struct Completed {
    pub request: TakenRequest,
    pub posted_ns: u64,
    pub error: Option<Box<FailureCause>>,
}

struct InFlightOp {
    /// The request, if it is alone in its operation.
    key: u32,
    /// The requests of any other operation.
    requests: Vec<TakenRequest>,
    posted_ns: u64,
    part: Part,
    next_free: u32,
}

/// Part of its requests' bytes that an operation moves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// All bytes of one request, using its own buffer.
    Single,
    All(MergeMethod),
    /// Bytes of a fragmented request, from `offset` on.
    Fragment {
        fragmented: u32,
        offset: usize,
    },
}

/// A request that is longer than an operation.
struct Fragmented {
    request: TakenRequest,
    /// Offset of the next fragment.
    next: usize,
    /// Fragments in flight.
    outstanding: usize,
    posted_ns: u64,
    error: Option<Box<FailureCause>>,
}

/// Operations in flight, by the ids under which the path knows them.
pub(super) struct Flight {
    operations: Vec<InFlightOp>,
    free: u32,
    count: usize,
    fragmented: Vec<Option<Fragmented>>,
    /// The request that is being cut into fragments.
    fragmenting: Option<u32>,
}

impl Flight {
    pub fn new(depth: usize) -> Self {
        Self { operations: Vec::with_capacity(depth), free: NONE, count: 0, fragmented: Vec::new(), fragmenting: None }
    }

    /// Operations in flight.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether a request has fragments still to be posted.
    #[inline]
    pub fn is_fragmenting(&self) -> bool {
        self.fragmenting.is_some()
    }

    #[inline]
    fn begin(&mut self, part: Part, posted_ns: u64) -> u32 {
        self.count += 1;
        let id = self.free;
        if let Some(flying) = self.operations.get_mut(id as usize) {
            self.free = flying.next_free;
            (flying.part, flying.posted_ns) = (part, posted_ns);
            return id;
        }
        self.grow(part, posted_ns)
    }

    #[inline(never)]
    fn grow(&mut self, part: Part, posted_ns: u64) -> u32 {
        self.operations.push(InFlightOp { key: NONE, requests: Vec::new(), posted_ns, part, next_free: NONE });
        self.operations.len() as u32 - 1
    }

    /// Posts one request, using its own buffer. Returns the operation's id.
    #[inline]
    pub fn post_one(&mut self, path: &mut impl Path, now_ns: u64, request: TakenRequest) -> u32 {
        let id = self.begin(Part::Single, now_ns);
        self.operations[id as usize].key = request.key;
        match request.buffer {
            Buffer::Target(target) => path.push_read(id, request.start, target),
            Buffer::Source(source) => path.push_write(id, request.start, source),
            Buffer::None => path.push(id, PathJob::Read { at: request.start, targets: Scatter::new() }),
        }
        id
    }

    /// Posts adjacent requests of one kind as one operation, each using its own buffer.
    pub fn post_gathered(&mut self, path: &mut impl Path, now_ns: u64, requests: impl Iterator<Item = TakenRequest>) {
        let id = self.begin(Part::All(MergeMethod::Gather), now_ns);
        let parts = &mut self.operations[id as usize].requests;
        parts.extend(requests);
        let at = parts.first().map_or(0, |first| first.start);
        let mut targets = Scatter::new();
        let mut sources = Gather::new();
        for request in parts.iter_mut() {
            match std::mem::replace(&mut request.buffer, Buffer::None) {
                Buffer::Target(target) => targets.push(target),
                Buffer::Source(source) => sources.push(source),
                Buffer::None => {}
            }
        }
        let job = if sources.is_empty() { PathJob::Read { at, targets } } else { PathJob::Write { at, sources } };
        path.push(id, job);
    }

    /// Posts adjacent requests of one kind as one operation from or to `staged`, which must be as long as all of them
    /// together.
    pub fn post_copied(
        &mut self,
        path: &mut impl Path,
        now_ns: u64,
        requests: impl Iterator<Item = TakenRequest>,
        mut staged: MessageBuffer,
    ) {
        let id = self.begin(Part::All(MergeMethod::Copy), now_ns);
        let parts = &mut self.operations[id as usize].requests;
        parts.extend(requests);
        let at = parts.first().map_or(0, |first| first.start);
        let is_write = parts.first().is_some_and(TakenRequest::is_write);
        if is_write {
            let mut filled = 0;
            for request in parts.iter_mut() {
                if let Buffer::Source(source) = std::mem::replace(&mut request.buffer, Buffer::None) {
                    staged[filled..filled + source.len].copy_from_slice(source.bytes());
                    filled += source.len;
                }
            }
            path.push_write(id, at, staged.freeze().into());
        } else {
            path.push_read(id, at, staged);
        }
    }

    /// Begins to cut a request into fragments.
    pub fn start_fragmenting(&mut self, request: TakenRequest, now_ns: u64) {
        let whole = Fragmented { request, next: 0, outstanding: 0, posted_ns: now_ns, error: None };
        let free = self.fragmented.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.fragmented.push(None);
            self.fragmented.len() - 1
        });
        self.fragmented[place] = Some(whole);
        self.fragmenting = Some(place as u32);
    }

    /// Posts the next fragment, of up to `len_max` bytes, of the request that is being cut. Returns whether it is a
    /// write.
    ///
    /// # Errors
    ///
    /// [`AllocError`] if there is no buffer to copy to; nothing was posted.
    pub fn post_fragment(&mut self, path: &mut impl Path, now_ns: u64, len_max: usize) -> Result<bool, AllocError> {
        let place = self.fragmenting.unwrap_or(NONE);
        let Some(whole) = self.fragmented.get_mut(place as usize).and_then(Option::as_mut) else { return Ok(false) };
        let (offset, at) = (whole.next, whole.request.start + whole.next as u64);
        let len = len_max.min(whole.request.len - offset);
        let is_write = whole.request.is_write();
        let job = match &whole.request.buffer {
            Buffer::Source(source) => {
                let piece = Slice { buffer: source.buffer.clone(), start: source.start + offset, len };
                if path.takes_source(&piece) {
                    PathJob::Write { at, sources: [piece].into_iter().collect() }
                } else {
                    let mut staged = path.stage(len)?;
                    staged.copy_from_slice(piece.bytes());
                    PathJob::write(at, staged.freeze().into())
                }
            }
            // A read cannot go into part of a buffer, so it is staged.
            _ => PathJob::read(at, path.stage(len)?),
        };
        whole.next += len;
        whole.outstanding += 1;
        if whole.next == whole.request.len || whole.error.is_some() {
            self.fragmenting = None;
        }
        let id = self.begin(Part::Fragment { fragmented: place, offset }, now_ns);
        path.push(id, job);
        Ok(is_write)
    }

    /// Makes the request that is being cut fail, once its fragments in flight have finished. Returns it if that is
    /// already so.
    pub fn stop_fragmenting(&mut self, why: FailureCause) -> Option<Completed> {
        let place = self.fragmenting.take()?;
        let whole = self.fragmented[place as usize].as_mut()?;
        whole.error.get_or_insert(Box::new(why));
        whole.next = whole.request.len;
        if whole.outstanding > 0 {
            return None;
        }
        self.fragmented[place as usize].take().map(Fragmented::into_completed)
    }

    /// Completes an operation, and returns its request if it was alone in it. For any other operation returns `None`;
    /// it must be passed to [`Self::complete_others`].
    #[inline]
    pub fn complete_one(&mut self, id: u32) -> Option<LoneDone> {
        let flying = self.operations.get_mut(id as usize)?;
        if flying.part != Part::Single {
            return None;
        }
        self.count -= 1;
        flying.next_free = self.free;
        self.free = id;
        Some(LoneDone { key: flying.key, posted_ns: flying.posted_ns })
    }

    /// Completes any other operation, and adds the requests that are finished with it to `completed`.
    #[inline(never)]
    pub fn complete_others(&mut self, done: Done, completed: &mut Vec<Completed>) {
        let Done { id, error, mut targets } = done;
        let Some(flying) = self.operations.get_mut(id as usize) else { return };
        let posted_ns = flying.posted_ns;
        let part = flying.part;
        let requests = flying.requests.drain(..);
        let mut fragment = None;
        match part {
            Part::Single => drop(requests),
            Part::All(MergeMethod::Gather) => {
                let mut targets = targets.drain(..);
                for mut request in requests {
                    if let Some(target) = targets.next() {
                        request.buffer = Buffer::Target(target);
                    }
                    completed.push(Completed { request, posted_ns, error: error.clone() });
                }
            }
            Part::All(MergeMethod::Copy) => {
                let mut from = targets.first().map_or(&[][..], |staged| staged);
                for mut request in requests {
                    if let Buffer::Target(target) = &mut request.buffer
                        && let Some((bytes, rest)) = from.split_at_checked(request.len)
                    {
                        target.copy_from_slice(bytes);
                        from = rest;
                    }
                    completed.push(Completed { request, posted_ns, error: error.clone() });
                }
            }
            Part::Fragment { fragmented, offset } => {
                drop(requests);
                fragment = Some((fragmented, offset));
            }
        }
        self.count -= 1;
        flying.next_free = self.free;
        self.free = id;
        if let Some((whole, offset)) = fragment {
            self.complete_fragment(whole, offset, error, targets.pop(), completed);
        }
    }

    #[inline(never)]
    fn complete_fragment(
        &mut self,
        place: u32,
        offset: usize,
        error: Option<Box<FailureCause>>,
        staged: Option<MessageBuffer>,
        completed: &mut Vec<Completed>,
    ) {
        let Some(whole) = self.fragmented.get_mut(place as usize).and_then(Option::as_mut) else { return };
        if let (Buffer::Target(target), Some(staged)) = (&mut whole.request.buffer, staged)
            && error.is_none()
        {
            target[offset..offset + staged.len()].copy_from_slice(&staged);
        }
        whole.outstanding -= 1;
        if let Some(error) = error {
            whole.error.get_or_insert(error);
            // No more of its fragments are posted.
            whole.next = whole.request.len;
            if self.fragmenting == Some(place) {
                self.fragmenting = None;
            }
        }
        if whole.outstanding == 0 && whole.next == whole.request.len {
            completed.extend(self.fragmented[place as usize].take().map(Fragmented::into_completed));
        }
    }

    /// Gives up everything in flight, and returns its requests. Targets remain with the path.
    pub fn abandon(&mut self, why: &FailureCause) -> Vec<Completed> {
        let mut completed = Vec::new();
        let mut is_free = vec![false; self.operations.len()];
        let mut free = self.free;
        while let Some(flying) = self.operations.get(free as usize) {
            is_free[free as usize] = true;
            free = flying.next_free;
        }
        for (flying, is_free) in self.operations.iter_mut().zip(is_free) {
            let posted_ns = flying.posted_ns;
            if flying.part == Part::Single && !is_free {
                let request = TakenRequest { key: flying.key, start: 0, len: 0, buffer: Buffer::None };
                completed.push(Completed { request, posted_ns, error: Some(Box::new(why.clone())) });
            }
            let requests = flying.requests.drain(..);
            completed.extend(requests.map(|request| Completed {
                request,
                posted_ns,
                error: Some(Box::new(why.clone())),
            }));
        }
        for mut whole in self.fragmented.drain(..).flatten() {
            whole.error = Some(Box::new(why.clone()));
            completed.push(whole.into_completed());
        }
        (self.count, self.fragmenting) = (0, None);
        completed
    }
}

impl Fragmented {
    fn into_completed(self) -> Completed {
        Completed { request: self.request, posted_ns: self.posted_ns, error: self.error }
    }
}
