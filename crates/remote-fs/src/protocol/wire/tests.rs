//! Tests of the encoding of messages and replies.

use proptest::prelude::*;
use sinew_remote_memory::volume::DonorId;

use super::*;
use crate::protocol::*;

/// Arbitrary numbers from which values are made.
struct Dice<'a>(std::iter::Cycle<std::slice::Iter<'a, u64>>);

impl Dice<'_> {
    fn word(&mut self) -> u64 {
        self.0.next().copied().unwrap_or_default()
    }

    fn half(&mut self) -> u32 {
        self.word() as u32
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 1
    }

    fn ino(&mut self) -> Ino {
        Ino(self.word())
    }

    fn bytes(&mut self, len_max: u64) -> Vec<u8> {
        let len = self.below(len_max + 1);
        (0..len).map(|_| self.word() as u8).collect()
    }

    fn name(&mut self) -> Vec<u8> {
        self.bytes(300)
    }

    fn many<T>(&mut self, make: impl Fn(&mut Self) -> T) -> Vec<T> {
        let count = self.below(5);
        (0..count).map(|_| make(self)).collect()
    }

    fn some<T>(&mut self, make: impl Fn(&mut Self) -> T) -> Option<T> {
        self.coin().then(|| make(self))
    }

    fn time(&mut self) -> Time {
        Time { s: self.word() as i64, ns: self.half() }
    }

    fn set_time(&mut self) -> SetTime {
        if self.coin() { SetTime::Now } else { SetTime::To(self.time()) }
    }

    fn access(&mut self) -> Access {
        Access { read: self.coin(), write: self.coin(), execute: self.coin() }
    }

    fn pages(&mut self) -> Pages {
        Pages { segment: self.half(), first: self.half() >> 1, count: 1 + self.below(20) as u32 }
    }

    fn sums(&mut self, count: u32, least: u64) -> Sums {
        Sums((0..count).map(|_| self.word().max(least)).collect())
    }

    fn owner(&mut self) -> LockOwner {
        if self.coin() { LockOwner::Posix(self.word()) } else { LockOwner::Flock(self.word()) }
    }

    fn lock(&mut self) -> Lock {
        let kind = if self.coin() { LockKind::Read } else { LockKind::Write };
        let (first, last) = (self.word(), self.word());
        Lock { ino: self.ino(), owner: self.owner(), pid: self.half(), first, last, kind }
    }

    fn attr(&mut self) -> Attr {
        const KINDS: [Kind; 7] =
            [Kind::File, Kind::Directory, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::CharDevice, Kind::BlockDevice];
        Attr {
            ino: self.ino(),
            kind: KINDS[self.below(7) as usize],
            mode: self.half(),
            links: self.half(),
            uid: self.half(),
            gid: self.half(),
            rdev: self.half(),
            size: self.word(),
            pages: self.word(),
            atime: self.time(),
            mtime: self.time(),
            ctime: self.time(),
            btime: self.time(),
            version: self.word(),
        }
    }

    /// Makes values over ascending, disjoint ranges of pages, with gaps.
    fn in_order<T>(&mut self, make: impl Fn(&mut Self, u64, Pages) -> T) -> (Vec<T>, u64) {
        let mut at = 0;
        let made = (0..self.below(5))
            .map(|_| {
                at += self.below(1 << 40);
                let pages = self.pages();
                let made = make(self, at, pages);
                at += u64::from(pages.count);
                made
            })
            .collect();
        (made, at)
    }

    fn extents(&mut self) -> Vec<Extent> {
        let make = |dice: &mut Self, at, pages: Pages| Extent {
            at,
            pages,
            generation: dice.half(),
            sums: dice.sums(pages.count, 1),
            replaces: dice.some(|dice| dice.sums(pages.count, 0)),
        };
        self.in_order(make).0
    }

    fn place(&mut self) -> Placement {
        let replica = |dice: &mut Self| SegmentCopy {
            donor: DonorId(dice.word()),
            incarnation: dice.word(),
            base: dice.word(),
            is_whole: dice.coin(),
        };
        Placement { segment: self.half(), generation: self.half(), pages: self.half(), copies: self.many(replica) }
    }

    fn request(&mut self) -> Request {
        match self.below(35) {
            0 => Request::Heartbeat,
            1 => Request::Leave,
            2 => Request::Donors,
            3 => Request::Lookup { parent: self.ino(), name: self.name() },
            4 => Request::GetAttr { ino: self.ino() },
            5 => Request::SetAttr {
                ino: self.ino(),
                set: SetAttr {
                    mode: self.some(Self::half),
                    uid: self.some(Self::half),
                    gid: self.some(Self::half),
                    size: self.some(Self::word),
                    atime: self.some(Self::set_time),
                    mtime: self.some(Self::set_time),
                },
                handle: self.some(Self::word),
            },
            6 => Request::ReadLink { ino: self.ino() },
            7 => Request::Create {
                parent: self.ino(),
                name: self.name(),
                mode: self.half(),
                handle: self.word(),
                access: self.access(),
            },
            8 => Request::MakeDirectory { parent: self.ino(), name: self.name(), mode: self.half() },
            9 => Request::MakeNode {
                parent: self.ino(),
                name: self.name(),
                mode: self.half(),
                kind: [NodeKind::File, NodeKind::Fifo, NodeKind::Socket, NodeKind::CharDevice, NodeKind::BlockDevice]
                    [self.below(5) as usize],
                rdev: self.half(),
            },
            10 => Request::MakeSymlink { parent: self.ino(), name: self.name(), target: self.name() },
            11 => Request::Link { ino: self.ino(), parent: self.ino(), name: self.name() },
            12 => Request::Unlink { parent: self.ino(), name: self.name() },
            13 => Request::RemoveDirectory { parent: self.ino(), name: self.name() },
            14 => Request::Rename {
                parent: self.ino(),
                name: self.name(),
                new_parent: self.ino(),
                new_name: self.name(),
                flags: self.half(),
            },
            15 => Request::Open { handle: self.word(), ino: self.ino(), access: self.access() },
            16 => Request::Close { handle: self.word() },
            17 => Request::ReadDirectory { handle: self.word(), after: self.word(), count: self.half() },
            18 => Request::Layout { handle: self.word(), at: self.word(), count: self.word() },
            19 => Request::Placements { segments: self.many(Self::half) },
            20 => Request::Reserve { pages: self.half() },
            21 => Request::GiveBack { pages: self.many(Self::pages) },
            22 => Request::Commit {
                handle: self.word(),
                size_min: self.word(),
                mtime: self.some(Self::time),
                holes: self.in_order(|_, at, pages| (at, u64::from(pages.count))).0,
                extents: self.extents(),
            },
            23 => Request::ReportFailed { segment: self.half(), donor: DonorId(self.word()), incarnation: self.word() },
            24 => Request::Statfs,
            25 => Request::GetXattr { ino: self.ino(), name: self.name() },
            26 => Request::ListXattr { ino: self.ino() },
            27 => Request::SetXattr {
                ino: self.ino(),
                name: self.name(),
                value: self.bytes(1000),
                how: [SetXattr::Any, SetXattr::Create, SetXattr::Replace][self.below(3) as usize],
            },
            28 => Request::RemoveXattr { ino: self.ino(), name: self.name() },
            29 => Request::Lock { lock: self.lock(), waits: self.coin() },
            30 => Request::TestLock(self.lock()),
            31 => {
                let (at, count) = (self.below(1 << 40), 1 + self.below(1 << 40));
                let hole = self.coin().then_some((at + count / 3, count / 2));
                let (handle, size_min, mtime) = (self.word(), self.word(), self.some(Self::time));
                Request::Allocate { handle, at, count, hole, size_min, mtime }
            }
            32 => Request::ReserveOverwrite {
                handle: self.word(),
                at: self.below(1 << 40),
                count: 1 + self.below(RESERVE_PAGES_MAX.into()) as u32,
                pages: self.half(),
                waits: self.coin(),
            },
            _ => {
                let (first, last) = (self.word(), self.word());
                Request::Unlock { ino: self.ino(), owner: self.owner(), first, last }
            }
        }
    }

    fn secret(&mut self) -> [u8; SECRET_LEN] {
        std::array::from_fn(|_| self.word() as u8)
    }

    fn message(&mut self) -> Message {
        match self.below(10) {
            0 => Message::Greet(self.word() as u8),
            1 => Message::Prove(self.secret()),
            2 => Message::Join(Join {
                before: self.some(|dice| (dice.word(), dice.secret())),
                opens: self.many(|dice| OpenFile { handle: dice.word(), ino: dice.ino(), access: dice.access() }),
                locks: self.many(Self::lock),
            }),
            _ => {
                let request = self.request();
                Message::Request(Envelope {
                    client: self.word(),
                    secret: self.secret(),
                    sequence: if request.changes() { self.word().max(1) } else { 0 },
                    settled: self.word(),
                    epoch: self.half(),
                    caller: Caller { uid: self.half(), gid: self.half(), groups: self.many(Self::half) },
                    request,
                })
            }
        }
    }

    fn donor(&mut self) -> DonorInfo {
        let address = String::from_utf8_lossy(&self.bytes(30)).into_owned();
        DonorInfo { donor: DonorId(self.word()), address, incarnation: self.some(Self::word) }
    }

    fn layout(&mut self) -> Layout {
        let make = |dice: &mut Self, at, pages: Pages| Run {
            at,
            pages,
            last_len: 1 + dice.below(PAGE as u64) as u16,
            sums: dice.sums(pages.count, 1),
        };
        let (runs, end) = self.in_order(make);
        let until = end + self.below(1 << 40);
        Layout { version: self.word(), size: self.word(), until, runs, places: self.many(Self::place) }
    }

    fn answer(&mut self) -> Answer {
        match self.below(11) {
            0 => Answer::Done,
            1 => Answer::Attr(self.attr()),
            2 => Answer::Unlinked(self.attr()),
            3 => Answer::Bytes(self.bytes(1000)),
            4 => Answer::Entries {
                entries: self.many(|dice| Entry { name: dice.name(), cookie: dice.word(), attr: dice.attr() }),
                is_end: self.coin(),
                parent: self.ino(),
            },
            5 => Answer::Layout(self.layout()),
            6 => Answer::Placements(self.many(Self::place)),
            7 => Answer::Reserved(Reservation {
                epoch: self.half(),
                client: self.word(),
                runs: self.many(Self::pages),
                places: self.many(Self::place),
            }),
            8 => Answer::Donors(self.many(Self::donor)),
            9 => {
                let [pages, free_pages, inodes, inodes_max] = [(); 4].map(|()| self.word());
                Answer::Space(Space { pages, free_pages, inodes, inodes_max })
            }
            _ => Answer::LockConflict(self.some(Self::lock)),
        }
    }

    fn reply(&mut self) -> Reply {
        match self.below(13) {
            0 => Reply::Nonce(self.secret()),
            1 => Reply::Welcome,
            2 => Reply::NotAdmitted,
            3 => Reply::Malformed,
            4 => Reply::Joined(Joined {
                client: self.word(),
                secret: self.secret(),
                is_known: self.coin(),
                epoch: self.half(),
                volume: self.word(),
                page_len: self.half(),
                lease_ns: self.word(),
                opens: self.many(Self::word),
                locks: self.many(Self::lock),
                donors: self.many(Self::donor),
            }),
            6 => Reply::Version(self.word() as u8),
            5 => Reply::Refused(if self.coin() { Error::NotFound } else { Error::AlreadyAnswered }),
            _ => Reply::Answer(self.answer()),
        }
    }
}

proptest! {
    #[test]
    fn messages_come_back_as_they_were_and_parts_of_them_do_not(words in prop::collection::vec(any::<u64>(), 1..200)) {
        let message = Dice(words.iter().cycle()).message();
        let bytes = message.to_bytes();
        prop_assert_eq!(Message::read(&bytes), Ok(message));
        for len in (0..bytes.len()).step_by(1 + bytes.len() / 100) {
            prop_assert_eq!(Message::read(&bytes[..len]), Err(Malformed), "{} bytes", len);
        }
        prop_assert_eq!(Message::read(&[&bytes[..], &[0]].concat()), Err(Malformed));
    }

    #[test]
    fn replies_come_back_as_they_were_and_parts_of_them_do_not(words in prop::collection::vec(any::<u64>(), 1..200)) {
        let reply = Dice(words.iter().cycle()).reply();
        let bytes = reply.to_bytes();
        prop_assert_eq!(Reply::read(&bytes), Ok(reply));
        for len in (0..bytes.len()).step_by(1 + bytes.len() / 100) {
            prop_assert_eq!(Reply::read(&bytes[..len]), Err(Malformed), "{} bytes", len);
        }
    }

    /// Bytes that were read successfully are written as bytes that read the same.
    #[test]
    fn bytes_that_changed_are_refused_or_mean_something(
        words in prop::collection::vec(any::<u64>(), 1..50), at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let mut dice = Dice(words.iter().cycle());
        let (mut message, mut reply) = (dice.message().to_bytes(), dice.reply().to_bytes());
        let (in_message, in_reply) = (at.index(message.len()), at.index(reply.len()));
        (message[in_message], reply[in_reply]) = (byte, byte);
        if let Ok(message) = Message::read(&message) {
            prop_assert_eq!(Message::read(&message.to_bytes()), Ok(message));
        }
        if let Ok(reply) = Reply::read(&reply) {
            prop_assert_eq!(Reply::read(&reply.to_bytes()), Ok(reply));
        }
    }

    #[test]
    fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = (Message::read(&bytes), Reply::read(&bytes));
    }
}

fn ask(request: Request) -> Message {
    let sequence = u64::from(request.changes());
    let (secret, caller) = ([7; SECRET_LEN], Caller { uid: 1, gid: 2, groups: vec![3] });
    Message::Request(Envelope { client: 300, secret, sequence, settled: 1, epoch: 2, caller, request })
}

fn commit(extents: Vec<Extent>, holes: Vec<(u64, u64)>) -> Message {
    ask(Request::Commit { handle: 1, size_min: 0, mtime: None, holes, extents })
}

fn extent(at: u64, count: u32) -> Extent {
    let pages = Pages { segment: 1, first: 0, count };
    Extent { at, pages, generation: 1, sums: Sums(vec![9; count as usize]), replaces: None }
}

fn reads(message: Message) -> bool {
    Message::read(&message.to_bytes()).is_ok()
}

#[test]
fn the_layout_is_fixed() {
    let message = ask(Request::Lookup { parent: Ino::ROOT, name: b"ab".to_vec() });
    // The envelope: client (300), secret, sequence, settled, epoch and caller; then the request and its fields.
    let expected = [&[3, 0xAC, 2][..], &[7; 16], &[0, 1, 2], &[1, 2, 1, 3], &[3, 1, 2, b'a', b'b']].concat();
    assert_eq!(message.to_bytes(), expected);
    // What programs of any version understand.
    assert_eq!((Message::Greet(9).to_bytes(), Reply::Version(9).to_bytes()), (vec![0, 9], vec![7, 9]));
    assert_eq!(Reply::Malformed.to_bytes(), [3]);
    let reply = Reply::Refused(Error::NotFound);
    assert_eq!(reply.to_bytes(), [6, 0]);
    let sums = Reply::Answer(Answer::Layout(Layout {
        version: 1,
        size: 2,
        until: 3,
        runs: vec![Run { at: 0, pages: Pages { segment: 4, first: 5, count: 1 }, last_len: 6, sums: Sums(vec![7]) }],
        places: Vec::new(),
    }));
    assert_eq!(sums.to_bytes(), [5, 5, 1, 2, 3, 1, 0, 4, 5, 1, 6, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn extents_that_overlap_or_go_past_the_end_of_all_numbers_are_refused() {
    assert!(reads(commit(vec![extent(0, 2), extent(2, 1)], vec![(0, 1)])));
    assert!(!reads(commit(vec![extent(0, 2), extent(1, 1)], vec![])));
    assert!(!reads(commit(vec![extent(5, 1), extent(0, 1)], vec![])));
    assert!(
        reads(commit(vec![extent(u64::MAX - 2, 2)], vec![])) && !reads(commit(vec![extent(u64::MAX - 1, 2)], vec![]))
    );
    assert!(!reads(commit(vec![extent(0, 0)], vec![])));
    assert!(!reads(commit(vec![], vec![(0, 0)])) && !reads(commit(vec![], vec![(1, u64::MAX)])));
    let mut short = extent(0, 2);
    short.sums.0.pop();
    assert!(!reads(commit(vec![short], vec![])));
    let mut none = extent(0, 2);
    none.sums.0[1] = 0;
    assert!(!reads(commit(vec![none], vec![])));
    let mut replacing = extent(0, 2);
    replacing.replaces = Some(Sums(vec![0, 0]));
    assert!(reads(commit(vec![replacing.clone()], vec![])));
    replacing.replaces = Some(Sums(vec![0]));
    assert!(!reads(commit(vec![replacing], vec![])));
}

#[test]
fn a_commit_as_large_as_it_may_be_fits_a_message_and_a_larger_one_is_refused() {
    let pages_each = RESERVE_PAGES_MAX / EXTENTS_MAX as u32;
    let large = |count: usize| {
        let extent = |index: usize| Extent {
            at: u64::MAX / 2 + index as u64 * u64::from(pages_each),
            pages: Pages { segment: u32::MAX, first: u32::MAX - pages_each, count: pages_each },
            generation: u32::MAX,
            replaces: Some(Sums(vec![u64::MAX; pages_each as usize])),
            sums: Sums(vec![u64::MAX; pages_each as usize]),
        };
        let holes = (0..EXTENTS_MAX as u64).map(|index| (u64::MAX / 2 + index, 1)).collect();
        commit((0..count).map(extent).collect(), holes)
    };
    assert!(reads(large(EXTENTS_MAX)) && !reads(large(EXTENTS_MAX + 1)));
    assert!(!reads(commit(vec![extent(0, RESERVE_PAGES_MAX + 1)], vec![])));
    let holes = |count: usize| commit(vec![], (0..count as u64).map(|at| (at, 1)).collect());
    assert!(reads(holes(EXTENTS_MAX)) && !reads(holes(EXTENTS_MAX + 1)));
}

#[test]
fn holes_that_overlap_or_are_not_in_order_are_refused() {
    assert!(reads(commit(vec![], vec![(0, 2), (2, 1), (9, 1)])));
    for holes in [[(0, 2), (1, 2)], [(0, 1), (0, 1)], [(5, 1), (0, 1)], [(0, 9), (3, 1)]] {
        assert!(!reads(commit(vec![], holes.to_vec())), "{holes:?}");
    }
}

#[test]
fn whoever_changes_something_has_a_sequence_number_and_nobody_else_has() {
    let number = |request: Request, sequence| {
        let Message::Request(envelope) = ask(request) else { unreachable!() };
        reads(Message::Request(Envelope { sequence, ..envelope }))
    };
    let unlink = || Request::Unlink { parent: Ino::ROOT, name: b"a".to_vec() };
    assert!(number(Request::Statfs, 0) && !number(Request::Statfs, 1) && number(unlink(), 1) && !number(unlink(), 0));
}

#[test]
fn counts_that_nobody_sent_the_items_of_are_no_reason_to_make_room() {
    // A join with as many open handles as a number can express.
    let bytes = [&[2, 0][..], &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1]].concat();
    assert_eq!(Message::read(&bytes), Err(Malformed));
    let groups = |count: usize| {
        let Message::Request(mut envelope) = ask(Request::Statfs) else { unreachable!() };
        envelope.caller.groups = vec![1; count];
        reads(Message::Request(envelope))
    };
    assert!(groups(GROUPS_MAX) && !groups(GROUPS_MAX + 1));
}
