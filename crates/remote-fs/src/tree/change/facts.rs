//! Rules of POSIX, and of Linux where POSIX leaves a choice.

use crate::protocol::*;
use crate::tree::{Context, Tree};

const NOW: Time = Time { s: 100, ns: 5 };

struct World {
    tree: Tree,
    freed: Vec<Pages>,
}

fn caller(uid: u32, groups: &[u32]) -> Caller {
    Caller { uid, gid: uid, groups: groups.to_vec() }
}

impl World {
    /// A world with a directory at inode 2 that every user may write to.
    fn new() -> Self {
        let mut world = Self { tree: Tree::new(Time::default()), freed: Vec::new() };
        world.directory(0, Ino::ROOT, "shared", 0o777).unwrap();
        world
    }

    fn change(&mut self, caller: &Caller, opened: Option<Ino>, request: &Request) -> Result<Answer, Error> {
        let context = Context { caller, now: NOW, opened };
        self.tree.change(context, request, &mut self.freed)
    }

    fn by(&mut self, uid: u32, request: Request) -> Result<Answer, Error> {
        self.change(&caller(uid, &[]), None, &request)
    }

    fn attr_by(&mut self, uid: u32, request: Request) -> Result<Attr, Error> {
        self.by(uid, request).map(|answer| match answer {
            Answer::Attr(attr) | Answer::Unlinked(attr) => attr,
            other => panic!("{other:?}"),
        })
    }

    fn directory(&mut self, uid: u32, parent: Ino, name: &str, mode: u32) -> Result<Attr, Error> {
        self.attr_by(uid, Request::MakeDirectory { parent, name: name.into(), mode })
    }

    fn node(&mut self, uid: u32, name: &str, mode: u32, kind: NodeKind) -> Result<Attr, Error> {
        self.attr_by(uid, Request::MakeNode { parent: SHARED, name: name.into(), mode, kind, rdev: 77 })
    }

    fn file(&mut self, uid: u32, name: &str, mode: u32) -> Attr {
        self.node(uid, name, mode, NodeKind::File).unwrap()
    }

    fn set(&mut self, caller: &Caller, ino: Ino, set: SetAttr) -> Result<Attr, Error> {
        match self.change(caller, None, &Request::SetAttr { ino, set, handle: None })? {
            Answer::Attr(attr) => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    fn rename(
        &mut self,
        uid: u32,
        (parent, name): (Ino, &str),
        (new_parent, new_name): (Ino, &str),
    ) -> Result<Answer, Error> {
        let request = Request::Rename { parent, name: name.into(), new_parent, new_name: new_name.into(), flags: 0 };
        self.by(uid, request)
    }

    fn commit(&mut self, ino: Ino, size_min: u64, holes: &[(u64, u64)], extents: &[Extent]) -> Result<Answer, Error> {
        let (holes, extents) = (holes.to_vec(), extents.to_vec());
        let request = Request::Commit { handle: 1, size_min, mtime: None, holes, extents };
        self.change(&caller(5, &[]), Some(ino), &request)
    }
}

const SHARED: Ino = Ino(2);

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn owner(uid: Option<u32>, gid: Option<u32>) -> SetAttr {
    SetAttr { uid, gid, ..SetAttr::default() }
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

fn times(time: SetTime) -> SetAttr {
    SetAttr { atime: Some(time), mtime: Some(time), ..SetAttr::default() }
}

#[test]
fn names_have_255_bytes_at_most_and_no_slashes() {
    let mut world = World::new();
    let make = |world: &mut World, name: &[u8]| {
        world.by(5, Request::MakeDirectory { parent: SHARED, name: name.to_vec(), mode: 0o755 }).map(|_| ())
    };
    assert_eq!(make(&mut world, &[b'n'; 255]), Ok(()));
    assert_eq!(make(&mut world, &[b'n'; 256]), Err(Error::NameTooLong));
    assert_eq!(make(&mut world, &[0xFF, 1]), Ok(()), "any other bytes are a name");
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
        assert_eq!(make(&mut world, name), Err(Error::Invalid), "{name:?}");
    }
    let lookup = |world: &World, name: &[u8]| world.tree.lookup(&caller(5, &[]), SHARED, name).map(|attr| attr.ino);
    assert_eq!(lookup(&world, &[b'n'; 255]), Ok(Ino(3)));
    assert_eq!(lookup(&world, &[b'n'; 256]), Err(Error::NameTooLong));
    let link = |len| Request::MakeSymlink { parent: SHARED, name: b"l".to_vec(), target: vec![b't'; len] };
    assert_eq!(world.by(5, link(0)), Err(Error::Invalid));
    assert_eq!(world.by(5, link(LINK_LEN_MAX + 1)), Err(Error::NameTooLong));
    assert_eq!(world.attr_by(5, link(LINK_LEN_MAX)).unwrap().size, LINK_LEN_MAX as u64);
}

#[test]
fn a_directory_that_may_not_be_searched_says_nothing_and_one_that_may_not_be_written_keeps_its_names() {
    let mut world = World::new();
    let private = world.directory(5, SHARED, "private", 0o700).unwrap().ino;
    let shown = world.directory(5, SHARED, "shown", 0o755).unwrap().ino;
    world.directory(5, shown, "in", 0o700).unwrap();
    world.directory(5, private, "in", 0o700).unwrap();
    let lookup = |world: &World, uid, parent| world.tree.lookup(&caller(uid, &[]), parent, b"in").map(|_| ());
    assert_eq!(lookup(&world, 6, private), Err(Error::Access));
    assert_eq!((lookup(&world, 6, shown), lookup(&world, 0, private)), (Ok(()), Ok(())));
    assert_eq!(world.directory(6, shown, "new", 0o700), Err(Error::Access));
    assert_eq!(world.directory(6, shown, "in", 0o700), Err(Error::Exists), "that it is there may be known");
    let remove = |parent| Request::RemoveDirectory { parent, name: b"in".to_vec() };
    assert_eq!(world.by(6, remove(shown)), Err(Error::Access));
    assert_eq!(world.by(6, remove(private)), Err(Error::Access));
    assert_eq!(world.rename(6, (shown, "in"), (SHARED, "in")), Err(Error::Access));
    assert!(world.by(5, remove(shown)).is_ok());
    let read = Access { read: true, ..Access::default() };
    assert_eq!(world.tree.may_open(&caller(6, &[]), private, read), Err(Error::Access));
    assert!(world.tree.may_open(&caller(6, &[]), shown, read).is_ok());
    let write = Access { write: true, ..Access::default() };
    assert_eq!(world.tree.may_open(&caller(5, &[]), shown, write), Err(Error::IsDirectory));
}

#[test]
fn from_a_sticky_directory_only_owners_take_names() {
    let mut world = World::new();
    world.set(&caller(0, &[]), SHARED, mode(0o1777)).unwrap();
    world.file(5, "a", 0o666);
    world.file(6, "b", 0o666);
    let unlink = |name: &str| Request::Unlink { parent: SHARED, name: name.into() };
    assert_eq!(world.by(6, unlink("a")), Err(Error::Permission));
    assert_eq!(world.rename(6, (SHARED, "a"), (SHARED, "c")), Err(Error::Permission));
    assert_eq!(world.rename(5, (SHARED, "a"), (SHARED, "b")), Err(Error::Permission), "it would take b away");
    assert!(world.rename(5, (SHARED, "a"), (SHARED, "c")).is_ok() && world.by(5, unlink("c")).is_ok());
    assert!(world.by(0, unlink("b")).is_ok());
}

#[test]
fn what_is_made_in_a_setgid_directory_has_its_group() {
    let mut world = World::new();
    world.set(&caller(0, &[]), SHARED, owner(None, Some(70))).unwrap();
    world.set(&caller(0, &[]), SHARED, mode(0o2777)).unwrap();
    let below = world.directory(5, SHARED, "below", 0o755).unwrap();
    assert_eq!((below.gid, below.mode), (70, 0o2755));
    let file = world.file(5, "file", 0o2755);
    assert_eq!((file.gid, file.mode), (70, 0o755), "who is not in the group lends nobody its rights");
}

#[test]
fn only_owners_and_root_change_modes_and_only_root_gives_files_away() {
    let mut world = World::new();
    let ino = world.file(5, "f", 0o6755).ino;
    assert_eq!(world.set(&caller(6, &[]), ino, mode(0o777)), Err(Error::Permission));
    assert_eq!(world.set(&caller(5, &[]), ino, mode(0o17777)).unwrap().mode, 0o7777);
    assert_eq!(world.set(&caller(5, &[]), ino, owner(Some(6), None)), Err(Error::Permission));
    assert_eq!(world.set(&caller(5, &[]), ino, owner(None, Some(9))), Err(Error::Permission));
    let attr = world.set(&caller(5, &[9]), ino, owner(Some(5), Some(9))).unwrap();
    assert_eq!((attr.gid, attr.mode, attr.ctime), (9, 0o1777, NOW), "it lends no rights any more");
    assert_eq!(world.set(&caller(5, &[]), ino, mode(0o2755)).unwrap().mode, 0o755, "of a group that it is not in");
    assert_eq!(world.set(&caller(6, &[9]), ino, owner(None, Some(9))), Err(Error::Permission));
    let attr = world.set(&caller(0, &[]), ino, owner(Some(6), Some(6))).unwrap();
    assert_eq!((attr.uid, attr.gid), (6, 6));
}

#[test]
fn who_may_write_sets_times_to_now_and_only_owners_to_others() {
    let mut world = World::new();
    let ino = world.file(5, "f", 0o646).ino;
    let then = SetTime::To(Time { s: -7, ns: 999_999_999 });
    assert_eq!(world.set(&caller(6, &[]), ino, times(then)), Err(Error::Permission));
    assert_eq!(world.set(&caller(6, &[5]), ino, times(SetTime::Now)), Err(Error::Access));
    assert_eq!(world.set(&caller(6, &[]), ino, times(SetTime::Now)).unwrap().mtime, NOW);
    let attr = world.set(&caller(5, &[]), ino, times(then)).unwrap();
    assert_eq!((attr.atime.s, attr.mtime.ns, attr.ctime), (-7, 999_999_999, NOW));
    let never = SetTime::To(Time { s: 0, ns: 1_000_000_000 });
    assert_eq!(world.set(&caller(5, &[]), ino, times(never)), Err(Error::Invalid));
}

#[test]
fn who_writes_takes_lent_rights_away_and_opened_files_may_be_cut_whatever_their_mode() {
    let mut world = World::new();
    let ino = world.file(5, "f", 0o6777).ino;
    assert_eq!(world.set(&caller(6, &[]), ino, size(10)).unwrap().mode, 0o777);
    world.set(&caller(0, &[]), ino, mode(0o6711)).unwrap();
    assert_eq!(world.set(&caller(6, &[]), ino, size(0)), Err(Error::Access));
    let request = Request::SetAttr { ino, set: size(3), handle: Some(1) };
    assert!(world.change(&caller(6, &[]), Some(ino), &request).is_ok());
    assert_eq!(world.set(&caller(5, &[]), SHARED, size(0)), Err(Error::IsDirectory));
    assert_eq!(world.set(&caller(5, &[]), ino, size(FILE_LEN_MAX)).unwrap().size, FILE_LEN_MAX);
    assert_eq!(world.set(&caller(5, &[]), ino, size(FILE_LEN_MAX + 1)), Err(Error::FileTooBig));
    assert_eq!(world.commit(ino, FILE_LEN_MAX + 1, &[], &[]), Err(Error::FileTooBig));
}

#[test]
fn devices_are_roots_to_make_and_pipes_anybodys() {
    let mut world = World::new();
    assert_eq!(world.node(5, "d", 0o600, NodeKind::CharDevice), Err(Error::Permission));
    let device = world.node(0, "d", 0o600, NodeKind::BlockDevice).unwrap();
    assert_eq!((device.kind, device.rdev), (Kind::BlockDevice, 77));
    let pipe = world.node(5, "p", 0o600, NodeKind::Fifo).unwrap();
    assert_eq!((pipe.kind, pipe.rdev), (Kind::Fifo, 0));
    assert_eq!(world.set(&caller(5, &[]), pipe.ino, size(0)), Err(Error::Invalid));
    assert_eq!(world.commit(pipe.ino, 0, &[], &[]), Err(Error::Invalid));
}

#[test]
fn an_open_file_lives_without_names_and_gets_none_again() {
    let mut world = World::new();
    let ino = world.file(5, "f", 0o644).ino;
    let unlinked = world.attr_by(5, Request::Unlink { parent: SHARED, name: b"f".to_vec() }).unwrap();
    assert_eq!((unlinked.links, world.tree.orphans().collect::<Vec<_>>()), (0, vec![ino]));
    assert!(world.commit(ino, 100, &[], &[]).is_ok());
    let link = Request::Link { ino, parent: SHARED, name: b"again".to_vec() };
    assert_eq!(world.by(5, link), Err(Error::NotFound));
    assert!(world.tree.drop_orphan(ino, &mut Vec::new()) && !world.tree.drop_orphan(ino, &mut Vec::new()));
    assert_eq!(world.tree.attr(ino), Err(Error::Stale));
}

#[test]
fn a_directory_moves_only_where_a_link_fits() {
    let mut world = World::new();
    let [from, to] = ["from", "to"].map(|name| world.directory(5, SHARED, name, 0o755).unwrap().ino);
    world.directory(5, from, "d", 0o755).unwrap();
    world.tree.inode_mut(to).unwrap().links = LINKS_MAX;
    assert_eq!(world.rename(5, (from, "d"), (to, "d")), Err(Error::TooManyLinks));
    assert!(world.rename(5, (from, "d"), (from, "e")).is_ok(), "it leaves a link where it takes one");
    world.tree.inode_mut(to).unwrap().links = LINKS_MAX - 1;
    assert!(world.rename(5, (from, "e"), (to, "d")).is_ok());
    assert_eq!(world.tree.attr(to).unwrap().links, LINKS_MAX);
}

#[test]
fn a_removed_directory_takes_no_names() {
    let mut world = World::new();
    let ino = world.directory(5, SHARED, "d", 0o777).unwrap().ino;
    world.by(5, Request::RemoveDirectory { parent: SHARED, name: b"d".to_vec() }).unwrap();
    assert_eq!(world.directory(5, ino, "x", 0o777), Err(Error::NotFound));
    world.file(5, "f", 0o644);
    assert_eq!(world.rename(5, (SHARED, "f"), (ino, "f")), Err(Error::NotFound));
    assert_eq!(world.tree.lookup(&caller(5, &[]), SHARED, b"f").map(|attr| attr.links), Ok(1));
}

#[test]
fn a_directory_that_is_anothers_is_not_moved_elsewhere() {
    let mut world = World::new();
    let ours = world.directory(5, SHARED, "ours", 0o777).unwrap().ino;
    world.directory(6, SHARED, "theirs", 0o755).unwrap();
    assert_eq!(world.rename(5, (SHARED, "theirs"), (ours, "theirs")), Err(Error::Access), "its .. would change");
    assert!(world.rename(5, (SHARED, "theirs"), (SHARED, "renamed")).is_ok());
}

fn extent(at: u64, first: u32, sums: &[u64]) -> Extent {
    let pages = Pages { segment: 1, first, count: sums.len() as u32 };
    Extent { at, pages, generation: 1, sums: Sums(sums.to_vec()), replaces: None }
}

#[test]
fn a_commit_happens_as_a_whole_or_not_at_all() {
    let mut world = World::new();
    let ino = world.file(5, "f", 0o644).ino;
    assert!(world.commit(ino, 3 * 4096, &[], &[extent(0, 0, &[1, 2, 3])]).is_ok());
    let mut stale = extent(1, 20, &[5]);
    stale.replaces = Some(Sums(vec![9]));
    let before = world.tree.clone();
    assert_eq!(world.commit(ino, 9 * 4096, &[(0, 1)], &[extent(0, 10, &[4]), stale.clone()]), Err(Error::PagesChanged));
    assert_eq!(world.commit(ino, 0, &[], &[extent(0, 10, &[4]), extent(3, 11, &[4])]), Err(Error::Invalid));
    assert_eq!((&world.tree, world.freed.len()), (&before, 0));
    stale.replaces = Some(Sums(vec![2]));
    assert!(world.commit(ino, 0, &[(2, 1)], &[extent(0, 10, &[4]), stale]).is_ok());
    let attr = world.tree.attr(ino).unwrap();
    assert_eq!((attr.size, attr.pages, attr.version), (3 * 4096, 2, 2));
    let freed: u32 = world.freed.iter().map(|pages| pages.count).sum();
    assert_eq!(freed, 3);
}

#[test]
fn a_page_that_was_cut_since_it_was_read_is_not_replaced_by_what_was_derived_from_it() {
    let mut world = World::new();
    let ino = world.file(5, "f", 0o644).ino;
    world.commit(ino, 8192, &[], &[extent(0, 0, &[1, 2])]).unwrap();
    let derived = |first, from| Extent { replaces: Some(Sums(vec![from])), ..extent(1, first, &[3]) };
    for bytes in [5000, 8192] {
        world.set(&caller(5, &[]), ino, size(bytes)).unwrap();
    }
    assert_eq!(world.commit(ino, 0, &[], &[derived(10, 2)]), Err(Error::PagesChanged), "904 bytes of it are left");
    assert_eq!(world.commit(ino, 0, &[], &[derived(10, contents_name(2, 905))]), Err(Error::PagesChanged));
    assert_eq!(world.tree.map(ino).unwrap().all().pop().map(|run| run.last_len), Some(904));
    assert!(world.commit(ino, 0, &[], &[derived(10, contents_name(2, 904))]).is_ok());
    assert!(world.commit(ino, 0, &[], &[derived(11, 3)]).is_ok(), "all of it belongs to the file");
}

#[test]
fn what_is_cut_off_reads_as_zeros_when_the_file_goes_on() {
    let mut world = World::new();
    let ino = world.file(5, "f", 0o644).ino;
    world.commit(ino, 8192, &[], &[extent(0, 0, &[1, 2])]).unwrap();
    for bytes in [5000, 4100, 8192, 6000] {
        world.set(&caller(5, &[]), ino, size(bytes)).unwrap();
    }
    let run = world.tree.map(ino).unwrap().all().pop().unwrap();
    assert_eq!((run.last_len, run.pages.count), (4, 2));
    world.commit(ino, 0, &[], &[extent(1, 9, &[3])]).unwrap();
    let run = world.tree.map(ino).unwrap().all().pop().unwrap();
    assert_eq!((run.last_len, run.sums), (4096, Sums(vec![3])));
}

#[test]
fn attributes_are_whose_prefix_says() {
    let mut world = World::new();
    let ino = world.file(5, "f", 0o640).ino;
    let set = |name: &str, how| Request::SetXattr { ino, name: name.into(), value: b"v".to_vec(), how };
    assert_eq!(world.by(6, set("user.a", SetXattr::Any)), Err(Error::Access));
    assert_eq!(world.by(5, set("user.a", SetXattr::Replace)), Err(Error::NoAttribute));
    assert!(world.by(5, set("user.a", SetXattr::Create)).is_ok());
    assert_eq!(world.by(5, set("user.a", SetXattr::Create)), Err(Error::Exists));
    assert_eq!(world.by(5, set("trusted.a", SetXattr::Any)), Err(Error::Permission));
    assert_eq!(world.by(5, set("system.posix_acl_access", SetXattr::Any)), Err(Error::NotSupported));
    assert_eq!(world.by(5, set("user.", SetXattr::Any)), Err(Error::Invalid));
    assert_eq!(world.by(5, set(&format!("user.{}", "n".repeat(251)), SetXattr::Any)), Err(Error::NameTooLong));
    assert!(world.by(0, set("trusted.a", SetXattr::Any)).is_ok());
    let tree = &world.tree;
    assert_eq!(tree.xattr(&caller(5, &[]), ino, b"user.a"), Ok(&b"v"[..]));
    assert_eq!(tree.xattr(&caller(6, &[]), ino, b"user.a"), Err(Error::Access));
    assert_eq!(tree.xattr(&caller(5, &[]), ino, b"trusted.a"), Err(Error::NoAttribute));
    assert_eq!(tree.xattr_names(&caller(5, &[]), ino).unwrap(), b"user.a\0");
    assert_eq!(tree.xattr_names(&caller(0, &[]), ino).unwrap(), b"trusted.a\0user.a\0");
    let remove = Request::RemoveXattr { ino, name: b"user.a".to_vec() };
    assert!(world.by(5, remove.clone()).is_ok());
    assert_eq!(world.by(5, remove), Err(Error::NoAttribute));
}

#[test]
fn attributes_of_an_inode_take_so_much_and_no_more() {
    let mut world = World::new();
    let ino = world.file(5, "f", 0o640).ino;
    let mut set = |name: String, len| {
        let request = Request::SetXattr { ino, name: name.into(), value: vec![0; len], how: SetXattr::Any };
        world.by(5, request).map(|_| ())
    };
    assert_eq!(set("user.a".into(), XATTR_VALUE_MAX + 1), Err(Error::AttributesTooBig));
    for index in 0..3 {
        assert_eq!(set(format!("user.{index}"), XATTR_VALUE_MAX), Ok(()));
    }
    // Four names of six bytes.
    let room = XATTRS_LEN_MAX - 3 * XATTR_VALUE_MAX - 4 * 6;
    assert_eq!(set("user.3".into(), room + 1), Err(Error::AttributesTooBig));
    assert_eq!(set("user.3".into(), room), Ok(()));
    assert_eq!(set("user.3".into(), room), Ok(()), "it takes the room of what it replaces");
}

#[test]
fn a_link_is_another_name_and_directories_have_none() {
    let mut world = World::new();
    let ino = world.file(5, "f", 0o644).ino;
    let link = |ino, name: &str| Request::Link { ino, parent: SHARED, name: name.into() };
    assert_eq!(world.attr_by(6, link(ino, "g")).unwrap().links, 2);
    assert_eq!(world.by(6, link(ino, "g")), Err(Error::Exists));
    assert_eq!(world.by(0, link(SHARED, "h")), Err(Error::Permission));
    assert_eq!(world.rename(5, (SHARED, "f"), (SHARED, "g")), Ok(Answer::Done));
    assert_eq!(world.tree.attr(ino).unwrap().links, 2, "two names of one inode stay, as POSIX has it");
}
