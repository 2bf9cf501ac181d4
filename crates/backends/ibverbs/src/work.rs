//! A queue pair's work: posted operations that are unfinished, and the work requests for the device.

use std::mem::size_of;
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::Arc;

use sinew_fabric::verbs::{PostError, QpConfig, Scatter, Slice, Source, VerbsError, WorkEntry, WorkTable};
use sinew_mem::{Arena, Extent, MessageBuffer, OwnedRange, SharedMemory};

use crate::abi::*;
use crate::gid::GRH_LEN;
use crate::library::system;
use crate::registration::{DomainInner, LocalMemory, Registration};
use crate::routes::AddressHandle;

/// Bytes from one received datagram's addresses to the next: a multiple of 8, as words in shared memory require.
const GRH_STRIDE: usize = GRH_LEN.next_multiple_of(8);

/// A request that is not over.
#[derive(Debug)]
pub(crate) struct Sent {
    pub entry: WorkEntry,
    /// A datagram's address handle, which must live as long as the request.
    pub _handle: Option<Rc<AddressHandle>>,
}

/// A receive that is not over.
#[derive(Debug)]
pub(crate) struct Posted {
    pub id: u64,
    pub buffers: Scatter,
    /// Whether the device has it. One that was posted once the queue pair was known to be in error is ours to flush.
    pub at_device: bool,
}

/// A work request, with room for as many pieces as one may have.
struct ListedRequest {
    wr: ibv_send_wr,
    sges: Box<[ibv_sge]>,
}

/// Room for this many pieces, and for one at least: inline bytes are a piece, too.
fn pieces(count: usize) -> Box<[ibv_sge]> {
    vec![ibv_sge::default(); count.max(1)].into()
}

/// Local keys of the arenas that buffers may come from.
#[derive(Debug, Default)]
pub(crate) struct Keys(Vec<(Arena, u32)>);

impl Keys {
    /// The local key of the arena that `is_from` recognises, or of registered memory with this extent.
    #[inline]
    fn find(
        &mut self,
        domain: &DomainInner,
        extent: Extent,
        is_from: impl Fn(&Arena) -> bool,
    ) -> Result<u32, PostError> {
        let find = |keys: &[(Arena, u32)]| keys.iter().find(|(arena, _)| is_from(arena)).map(|&(_, key)| key);
        match find(&self.0) {
            Some(key) => Ok(key),
            None => {
                // A domain's list of arenas only grows.
                let known = self.0.len();
                self.0.extend(domain.arenas_since(known));
                let found = find(&self.0[known..]).or_else(|| domain.registered.find(extent, LocalMemory::lkey));
                found.ok_or(PostError::ForeignBuffer)
            }
        }
    }

    /// Describes buffers to the device, leaving out empty ones: a device reads a length of 0 as 2 GiB.
    pub fn scatter(
        &mut self,
        domain: &DomainInner,
        buffers: &Scatter,
        sges: &mut [ibv_sge],
    ) -> Result<usize, PostError> {
        let mut count = 0;
        for buffer in buffers {
            let lkey = self.find(domain, buffer.extent(), |arena| buffer.is_from(arena))?;
            if !buffer.is_empty() {
                sges[count] = ibv_sge { addr: buffer.as_ptr().addr() as u64, length: buffer.len() as u32, lkey };
                count += 1;
            }
        }
        Ok(count)
    }

    /// Describes to the device the word for an atomic's result.
    #[inline]
    pub fn sge_of(&mut self, domain: &DomainInner, target: &MessageBuffer) -> Result<ibv_sge, PostError> {
        let lkey = self.find(domain, target.extent(), |arena| target.is_from(arena))?;
        Ok(ibv_sge { addr: target.as_ptr().addr() as u64, length: 8, lkey })
    }

    /// Describes a range to the device; an empty one has no piece.
    pub fn range(
        &mut self,
        domain: &DomainInner,
        range: &OwnedRange,
        sges: &mut [ibv_sge],
    ) -> Result<usize, PostError> {
        let lkey = self.find(domain, range.extent(), |arena| range.is_from(arena))?;
        if !range.is_empty() {
            sges[0] = ibv_sge { addr: range.as_ptr().addr() as u64, length: range.len() as u32, lkey };
        }
        Ok(usize::from(!range.is_empty()))
    }

    fn gather(&mut self, domain: &DomainInner, pieces: &[Slice], sges: &mut [ibv_sge]) -> Result<usize, PostError> {
        let mut count = 0;
        for piece in pieces {
            let lkey = self.find(domain, piece.buffer.extent(), |arena| piece.buffer.is_from(arena))?;
            if piece.len > 0 {
                sges[count] = ibv_sge { addr: piece.bytes().as_ptr().addr() as u64, length: piece.len as u32, lkey };
                count += 1;
            }
        }
        Ok(count)
    }
}

/// Requests that were pushed and not yet handed to the device, in memory of their own.
pub(crate) struct RequestList {
    requests: Box<[ListedRequest]>,
    /// Inline bytes, `inline_max` for each request.
    inline: Box<[u8]>,
    inline_max: usize,
    len: usize,
}

impl std::fmt::Debug for RequestList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestList").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The part of a chain that the device took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostOutcome {
    /// All.
    All,
    /// The first requests, this many; it refused the next one.
    Some(usize),
    /// An unknown part: it failed without saying how many.
    Unknown,
}

impl RequestList {
    fn new(config: &QpConfig) -> Self {
        let empty = || ListedRequest {
            // SAFETY: zeros are a value of this structure: null pointers and numbers.
            wr: unsafe { std::mem::zeroed() },
            sges: pieces(config.gather_max),
        };
        Self {
            requests: std::iter::repeat_with(empty).take(config.send_depth).collect(),
            inline: vec![0; config.send_depth * config.inline_max].into_boxed_slice(),
            inline_max: config.inline_max,
            len: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Forgets what was pushed.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// The next work request, with its pieces. It becomes part of the chain with [`Self::push`].
    #[inline]
    pub fn next(&mut self) -> (&mut ibv_send_wr, &mut [ibv_sge]) {
        let ListedRequest { wr, sges } = &mut self.requests[self.len];
        (wr, sges)
    }

    /// Describes a source to the device; inline bytes are copied here.
    #[inline]
    pub fn source(&mut self, keys: &mut Keys, domain: &DomainInner, source: &Source<'_>) -> Result<(), PostError> {
        let ListedRequest { wr, sges } = &mut self.requests[self.len];
        let count = match source {
            Source::Empty | Source::Inline([]) => 0,
            Source::Inline(bytes) => {
                let copy = &mut self.inline[self.len * self.inline_max..][..bytes.len()];
                copy.copy_from_slice(bytes);
                // The pointer passes as a number, through which posting reads the bytes.
                let addr = copy.as_mut_ptr().expose_provenance() as u64;
                sges[0] = ibv_sge { addr, length: bytes.len() as u32, lkey: 0 };
                wr.send_flags |= IBV_SEND_INLINE;
                1
            }
            Source::Gather(pieces) => keys.gather(domain, pieces, sges)?,
        };
        wr.num_sge = count as i32;
        Ok(())
    }

    /// Adds the next work request, which is complete, to the chain.
    #[inline]
    pub fn push(&mut self) {
        self.len += 1;
    }

    /// The flags and the pieces' lengths of the last request.
    #[cfg(test)]
    pub fn last(&self) -> (u32, Vec<u32>) {
        let ListedRequest { wr, sges } = &self.requests[self.len - 1];
        (wr.send_flags, sges[..wr.num_sge as usize].iter().map(|sge| sge.length).collect())
    }

    /// Spoils the last request so that no device takes it.
    #[cfg(test)]
    pub fn corrupt_last(&mut self) {
        let last = &mut self.requests[self.len - 1];
        assert!(last.wr.send_flags & IBV_SEND_INLINE != 0, "its length is looked at before its bytes");
        last.sges[0].length = 1 << 20;
    }

    /// Hands all requests to the device as one list, and empties the chain.
    ///
    /// # Safety
    ///
    /// - The queue pair lives, and `post` is its device's function.
    /// - What the requests name stays until they are over.
    #[inline]
    pub unsafe fn post_all(&mut self, qp: *mut ibv_qp, post: PostSend) -> PostOutcome {
        let len = std::mem::take(&mut self.len);
        if len == 0 {
            return PostOutcome::All;
        }
        let first = self.requests.as_mut_ptr();
        for index in 0..len {
            // SAFETY: there are `len` requests, and all pointers to them derive from the one to the first. Their pieces
            // lie elsewhere, and stay there.
            unsafe {
                let request = first.add(index);
                (*request).wr.sg_list = (*request).sges.as_mut_ptr();
                (*request).wr.next = if index + 1 < len { &raw mut (*first.add(index + 1)).wr } else { null_mut() };
            }
        }
        let mut refused = null_mut();
        // SAFETY: our caller's promise, and a list that ends. The device copies the list before the call returns.
        let status = unsafe { post(qp, (&raw mut (*first).wr), &raw mut refused) };
        if status == 0 {
            return PostOutcome::All;
        }
        let offset = refused.addr().wrapping_sub(first.addr());
        let taken = offset / size_of::<ListedRequest>();
        if refused.is_null() || taken >= len { PostOutcome::Unknown } else { PostOutcome::Some(taken) }
    }
}

/// A queue pair's work.
#[derive(Debug)]
pub(crate) struct Work {
    pub sends: WorkTable<Sent>,
    /// Empty places are receives that completed before older ones.
    pub receives: WorkTable<Option<Posted>>,
    pub chain: RequestList,
    /// Room for the pieces of a receive, of which a datagram's addresses are one.
    pub receive_sges: Box<[ibv_sge]>,
    pub keys: Keys,
}

impl Work {
    pub fn new(config: &QpConfig) -> Self {
        Self {
            sends: WorkTable::new(config.send_depth),
            receives: WorkTable::new(config.receive_depth),
            chain: RequestList::new(config),
            receive_sges: pieces(config.gather_max + 1),
            keys: Keys::default(),
        }
    }
}

/// Memory in which the device puts the addresses of received datagrams: a place for each receive.
#[derive(Debug)]
pub(crate) struct Headers {
    registration: Registration,
    places: u64,
}

impl Headers {
    pub fn new(domain: &Arc<DomainInner>, receives: usize) -> Result<Self, VerbsError> {
        let len = receives.max(1) * GRH_STRIDE;
        let memory = SharedMemory::private(len)
            .map_err(|error| system(format!("mapping {len} bytes for headers"), error, None))?;
        let registration = Registration::new(domain, memory, IBV_ACCESS_LOCAL_WRITE)?;
        Ok(Self { registration, places: receives.max(1) as u64 })
    }

    fn offset(&self, number: u64) -> usize {
        (number % self.places) as usize * GRH_STRIDE
    }

    /// The place for receive `number`, as the first of its pieces.
    pub fn piece(&self, number: u64) -> ibv_sge {
        let offset = self.offset(number);
        let memory = self.registration.memory();
        // Devices leave the first half untouched when the addresses are IPv4; an older header there would be taken for
        // one.
        let cleared = memory.store(offset, 0);
        debug_assert!(cleared.is_ok(), "a place of ours");
        ibv_sge {
            addr: (memory.address() + offset) as u64,
            length: GRH_LEN as u32,
            lkey: self.registration.region.lkey,
        }
    }

    /// Reads what the device put in a receive's place.
    pub fn read(&self, number: u64) -> [u8; GRH_LEN] {
        let mut header = [0; GRH_LEN];
        let read = self.registration.memory().read(self.offset(number), &mut header);
        debug_assert!(read.is_ok(), "a place of ours");
        header
    }
}
