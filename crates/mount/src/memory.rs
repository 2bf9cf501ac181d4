//! Files in the memory of this process. They are a baseline: any file system behind a mount has to do at least this
//! much.
//!
//! The kernel checks permissions and keeps the locks. There are no extended attributes.

mod data;
mod node;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use rustix::io::Errno;
use sinew_mem::atomic::{AtomicU64, Ordering};

use crate::files::{
    AllocateMode, AttributeChange, Attributes, CacheLifetimes, CacheNotifier, Caller, DirectoryEntry, Files, Kind,
    Lock, NewNode, Opened, ROOT, RenameOptions, Result, SeekTarget, Space, TimeChange, XattrMode,
};
use data::Data;
use node::{Content, Directory, NAME_MAX, Node};

/// Nothing else changes the files, so what the kernel knows stays valid.
const LIFETIME: Duration = Duration::from_secs(3600);

struct Tree {
    nodes: HashMap<u64, Node>,
    next: u64,
}

/// A file system in this process's own memory.
pub struct InMemory {
    tree: Mutex<Tree>,
    /// Open files by handle: the inode and its data.
    handles: Mutex<HashMap<u64, (u64, Arc<Data>)>>,
    next_handle: AtomicU64,
    /// Size of the file system that it reports, in bytes.
    len: u64,
}

impl std::fmt::Debug for InMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InMemory")
    }
}

fn time_of(time: TimeChange) -> SystemTime {
    match time {
        TimeChange::Now => SystemTime::now(),
        TimeChange::At(time) => time,
    }
}

impl Tree {
    fn node(&self, ino: u64) -> Result<&Node> {
        self.nodes.get(&ino).ok_or(Errno::STALE)
    }

    fn node_mut(&mut self, ino: u64) -> Result<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(Errno::STALE)
    }

    fn directory(&mut self, ino: u64) -> Result<&mut Directory> {
        match &mut self.node_mut(ino)?.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn child(&mut self, parent: u64, name: &[u8]) -> Result<u64> {
        self.directory(parent)?.get(name).ok_or(Errno::NOENT)
    }

    /// Attributes of an inode, as `stat` shows them.
    fn attributes(&self, ino: u64) -> Result<Attributes> {
        Ok(self.node(ino)?.attributes())
    }

    /// Counts another reference of the kernel's to an inode.
    fn count_lookup(&mut self, ino: u64) -> Result<Attributes> {
        self.node_mut(ino)?.lookups += 1;
        self.attributes(ino)
    }

    fn add(
        &mut self,
        caller: &Caller,
        parent: u64,
        name: &[u8],
        content: Content,
        kind: Kind,
        mode: u16,
    ) -> Result<u64> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let parent_node = self.node(parent)?;
        let (parent_mode, parent_gid) = (parent_node.mode, parent_node.gid);
        if self.directory(parent)?.get(name).is_some() {
            return Err(Errno::EXIST);
        }
        let ino = self.next;
        self.next += 1;
        let is_directory = kind == Kind::Directory;
        let mut node = Node::new(ino, kind, mode, caller, content);
        // A set-group-id directory passes on its group.
        if parent_mode & 0o2000 != 0 {
            node.gid = parent_gid;
            node.mode |= if is_directory { 0o2000 } else { 0 };
        }
        self.nodes.insert(ino, node);
        self.directory(parent)?.insert(name, ino);
        let parent_node = self.node_mut(parent)?;
        parent_node.links += u32::from(is_directory);
        parent_node.touch();
        Ok(ino)
    }

    /// Removes a name, and its inode if that was the last name and the kernel has forgotten it.
    fn remove_name(&mut self, parent: u64, name: &[u8]) -> Result<()> {
        let ino = self.directory(parent)?.remove(name).ok_or(Errno::NOENT)?;
        let node = self.node_mut(ino)?;
        let is_directory = matches!(node.content, Content::Directory(_));
        node.links = if is_directory { 0 } else { node.links - 1 };
        node.changed = SystemTime::now();
        let parent_node = self.node_mut(parent)?;
        parent_node.links -= u32::from(is_directory);
        parent_node.touch();
        self.drop_if_unreferenced(ino);
        Ok(())
    }

    fn drop_if_unreferenced(&mut self, ino: u64) {
        if self.nodes.get(&ino).is_some_and(|node| node.links == 0 && node.lookups == 0) {
            self.nodes.remove(&ino);
        }
    }

    /// Whether a directory is `ancestor`, or lies somewhere in it.
    fn is_descendant(&mut self, ino: u64, ancestor: u64) -> bool {
        if ino == ancestor {
            return true;
        }
        let children = match &self.nodes.get(&ancestor).map(|node| &node.content) {
            Some(Content::Directory(directory)) => directory.inodes(),
            _ => return false,
        };
        children.into_iter().any(|inner| self.is_descendant(ino, inner))
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), how: RenameOptions) -> Result<()> {
        if to.1.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let moved = self.child(from.0, from.1)?;
        let replaced = self.directory(to.0)?.get(to.1);
        let is_directory = |tree: &Self, ino: u64| tree.node(ino).is_ok_and(|node| node.kind == Kind::Directory);
        if is_directory(self, moved) && self.is_descendant(to.0, moved) {
            return Err(Errno::INVAL);
        }
        if how.exchange {
            let other = replaced.ok_or(Errno::NOENT)?;
            if is_directory(self, other) && self.is_descendant(from.0, other) {
                return Err(Errno::INVAL);
            }
            self.directory(from.0)?.insert(from.1, other);
            self.directory(to.0)?.insert(to.1, moved);
            for (ino, out, into) in [(moved, from.0, to.0), (other, to.0, from.0)] {
                if is_directory(self, ino) {
                    self.node_mut(out)?.links -= 1;
                    self.node_mut(into)?.links += 1;
                }
            }
        } else {
            match replaced {
                Some(_) if how.no_replace => return Err(Errno::EXIST),
                Some(other) if other == moved => return Ok(()),
                Some(other) => {
                    match (is_directory(self, moved), is_directory(self, other)) {
                        (true, false) => return Err(Errno::NOTDIR),
                        (false, true) => return Err(Errno::ISDIR),
                        (true, true) if !self.directory(other)?.is_empty() => return Err(Errno::NOTEMPTY),
                        _ => {}
                    }
                    self.remove_name(to.0, to.1)?;
                }
                None => {}
            }
            self.directory(from.0)?.remove(from.1);
            self.directory(to.0)?.insert(to.1, moved);
            if is_directory(self, moved) {
                self.node_mut(from.0)?.links -= 1;
                self.node_mut(to.0)?.links += 1;
            }
        }
        self.node_mut(moved)?.changed = SystemTime::now();
        self.node_mut(from.0)?.touch();
        self.node_mut(to.0)?.touch();
        Ok(())
    }
}

impl InMemory {
    /// An empty file system that reports a size of `len` bytes. Its root belongs to `owner`. Memory is allocated as
    /// files are written, and `len` does not bound it.
    pub fn new(len: u64, owner: &Caller) -> Self {
        let mut root = Node::new(ROOT, Kind::Directory, 0o755, owner, Content::Directory(Directory::default()));
        root.lookups = 1;
        let tree = Tree { nodes: HashMap::from([(ROOT, root)]), next: ROOT + 1 };
        Self { tree: Mutex::new(tree), handles: Mutex::default(), next_handle: AtomicU64::new(1), len }
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn data(&self, handle: u64) -> Result<Arc<Data>> {
        let handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        handles.get(&handle).map(|(_, data)| Arc::clone(data)).ok_or(Errno::BADF)
    }

    fn add_handle(&self, ino: u64, data: Arc<Data>) -> Opened {
        // Relaxed: the numbers only need to differ.
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, (ino, data));
        Opened { handle, is_unchanged: true }
    }

    fn note_write(&self, ino: u64, drops_privileges: bool) {
        if let Ok(node) = self.tree().node_mut(ino) {
            node.touch();
            if drops_privileges {
                node.drop_privileges();
            }
        }
    }
}

impl Files for InMemory {
    fn lifetimes(&self) -> CacheLifetimes {
        CacheLifetimes { name: LIFETIME, attributes: LIFETIME }
    }

    fn shares_locks(&self) -> bool {
        false
    }

    fn set_notifier(&self, _: Arc<dyn CacheNotifier>) {}

    fn lookup(&self, _: &Caller, parent: u64, name: &[u8]) -> Result<Attributes> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let mut tree = self.tree();
        let ino = tree.child(parent, name)?;
        tree.count_lookup(ino)
    }

    fn count_lookup(&self, ino: u64) {
        // The inode exists: a listing has just returned it.
        let _ = self.tree().count_lookup(ino);
    }

    fn forget(&self, ino: u64, times: u64) {
        let mut tree = self.tree();
        if let Ok(node) = tree.node_mut(ino) {
            node.lookups = node.lookups.saturating_sub(times);
        }
        tree.drop_if_unreferenced(ino);
    }

    fn attributes(&self, ino: u64, _: Option<u64>) -> Result<Attributes> {
        self.tree().attributes(ino)
    }

    fn change(&self, caller: &Caller, ino: u64, _: Option<u64>, change: &AttributeChange) -> Result<Attributes> {
        let mut tree = self.tree();
        let node = tree.node_mut(ino)?;
        if let Some(size) = change.size {
            let Content::File(data) = &node.content else { return Err(Errno::INVAL) };
            data.set_len(size)?;
            node.touch();
            if caller.uid != 0 {
                node.drop_privileges();
            }
        }
        node.mode = change.mode.unwrap_or(node.mode);
        node.uid = change.uid.unwrap_or(node.uid);
        node.gid = change.gid.unwrap_or(node.gid);
        node.accessed = change.accessed.map_or(node.accessed, time_of);
        node.modified = change.modified.map_or(node.modified, time_of);
        node.changed = SystemTime::now();
        tree.attributes(ino)
    }

    fn read_link(&self, ino: u64) -> Result<Vec<u8>> {
        match &self.tree().node(ino)?.content {
            Content::Link(path) => Ok(path.clone()),
            _ => Err(Errno::INVAL),
        }
    }

    fn make(&self, caller: &Caller, parent: u64, name: &[u8], new: NewNode<'_>, mode: u16) -> Result<Attributes> {
        let (content, kind) = match new {
            NewNode::Directory => (Content::Directory(Directory::default()), Kind::Directory),
            NewNode::Link(path) => (Content::Link(path.to_vec()), Kind::Link),
            NewNode::Node { kind: Kind::File, .. } => (Content::File(Arc::default()), Kind::File),
            NewNode::Node { kind, device } => (Content::Node { device }, kind),
        };
        let mut tree = self.tree();
        let ino = tree.add(caller, parent, name, content, kind, mode)?;
        tree.count_lookup(ino)
    }

    fn unlink(&self, _: &Caller, parent: u64, name: &[u8]) -> Result<()> {
        let mut tree = self.tree();
        let ino = tree.child(parent, name)?;
        match tree.node(ino)?.kind {
            Kind::Directory => Err(Errno::ISDIR),
            _ => tree.remove_name(parent, name),
        }
    }

    fn remove_directory(&self, _: &Caller, parent: u64, name: &[u8]) -> Result<()> {
        let mut tree = self.tree();
        let ino = tree.child(parent, name)?;
        match tree.directory(ino)?.is_empty() {
            true => tree.remove_name(parent, name),
            false => Err(Errno::NOTEMPTY),
        }
    }

    fn rename(&self, _: &Caller, from: (u64, &[u8]), to: (u64, &[u8]), how: RenameOptions) -> Result<()> {
        self.tree().rename(from, to, how)
    }

    fn link(&self, _: &Caller, ino: u64, parent: u64, name: &[u8]) -> Result<Attributes> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let mut tree = self.tree();
        if tree.directory(parent)?.get(name).is_some() {
            return Err(Errno::EXIST);
        }
        let node = tree.node_mut(ino)?;
        if node.kind == Kind::Directory {
            return Err(Errno::PERM);
        }
        node.links += 1;
        node.changed = SystemTime::now();
        tree.directory(parent)?.insert(name, ino);
        tree.node_mut(parent)?.touch();
        tree.count_lookup(ino)
    }

    fn open(&self, _: &Caller, ino: u64, flags: i32) -> Result<Opened> {
        let mut tree = self.tree();
        let node = tree.node_mut(ino)?;
        let Content::File(data) = &node.content else { return Err(Errno::INVAL) };
        let data = Arc::clone(data);
        if flags & OFlags::TRUNC.bits() as i32 != 0 {
            data.set_len(0)?;
            node.touch();
        }
        drop(tree);
        Ok(self.add_handle(ino, data))
    }

    fn create(&self, caller: &Caller, parent: u64, name: &[u8], mode: u16, _: i32) -> Result<(Attributes, Opened)> {
        let data = Arc::new(Data::default());
        let mut tree = self.tree();
        let ino = tree.add(caller, parent, name, Content::File(Arc::clone(&data)), Kind::File, mode)?;
        let attributes = tree.count_lookup(ino)?;
        drop(tree);
        Ok((attributes, self.add_handle(ino, data)))
    }

    fn read(&self, _: u64, handle: u64, at: u64, len: usize, answer: impl FnOnce(Result<&[u8]>)) {
        match self.data(handle) {
            Ok(data) => data.read(at, len, answer),
            Err(error) => answer(Err(error)),
        }
    }

    fn write(&self, ino: u64, handle: u64, at: u64, data: &[u8], drops_privileges: bool) -> Result<usize> {
        self.data(handle)?.write(at, data)?;
        self.note_write(ino, drops_privileges);
        Ok(data.len())
    }

    fn flush(&self, _: u64, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn sync(&self, _: u64, _: u64, _: bool) -> Result<()> {
        Ok(())
    }

    fn release(&self, _: u64, handle: u64, _: Option<u64>) {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle);
    }

    fn open_directory(&self, _: &Caller, ino: u64) -> Result<u64> {
        self.tree().directory(ino).map(|_| 0)
    }

    fn list(&self, ino: u64, _: u64, cookie: u64, add: &mut dyn FnMut(DirectoryEntry) -> bool) -> Result<()> {
        let mut from = cookie;
        loop {
            // `add` may call back, so the lock is released.
            let mut tree = self.tree();
            let Some((cookie, name, ino)) = tree.directory(ino)?.next_after(from) else { return Ok(()) };
            let attributes = tree.attributes(ino)?;
            drop(tree);
            if !add(DirectoryEntry { cookie, name, attributes }) {
                return Ok(());
            }
            from = cookie;
        }
    }

    fn release_directory(&self, _: u64, _: u64) {}

    fn sync_directory(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn space(&self) -> Result<Space> {
        const BLOCK: u64 = 4096;
        let tree = self.tree();
        let taken: u64 = tree.nodes.values().map(Node::allocated).sum();
        Ok(Space {
            block: BLOCK as u32,
            blocks: self.len / BLOCK,
            free: self.len.saturating_sub(taken) / BLOCK,
            inodes: u64::from(u32::MAX),
            inodes_free: u64::from(u32::MAX) - tree.nodes.len() as u64,
            name_max: NAME_MAX as u32,
        })
    }

    fn set_extended(&self, _: &Caller, _: u64, _: &[u8], _: &[u8], _: XattrMode) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    fn extended(&self, _: &Caller, _: u64, _: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::OPNOTSUPP)
    }

    fn list_extended(&self, _: &Caller, _: u64) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn remove_extended(&self, _: &Caller, _: u64, _: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    fn test_lock(&self, _: u64, _: &Lock) -> Result<Option<Lock>> {
        Err(Errno::NOSYS)
    }

    fn set_lock(&self, _: u64, _: &Lock, _: bool) -> Result<()> {
        Err(Errno::NOSYS)
    }

    fn allocate(
        &self,
        ino: u64,
        handle: u64,
        (at, len): (u64, u64),
        how: AllocateMode,
        keeps_size: bool,
        drops_privileges: bool,
    ) -> Result<()> {
        let data = self.data(handle)?;
        let end = at.checked_add(len).ok_or(Errno::FBIG)?;
        if how != AllocateMode::Reserve {
            data.zero(at, len);
        }
        if !keeps_size {
            data.grow(end)?;
        }
        self.note_write(ino, drops_privileges);
        Ok(())
    }

    fn seek(&self, _: u64, handle: u64, at: u64, target: SeekTarget) -> Result<u64> {
        self.data(handle)?.seek(at, target)
    }

    fn unmounted(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> (InMemory, Caller) {
        let me = Caller { uid: 7, gid: 8, ..Caller::default() };
        (InMemory::new(1 << 30, &me), me)
    }

    #[test]
    fn a_file_without_names_lives_until_nobody_knows_it() {
        let (files, me) = files();
        let (attributes, opened) = files.create(&me, ROOT, b"a", 0o644, 0).unwrap();
        files.write(attributes.ino, opened.handle, 0, b"hello", false).unwrap();
        files.unlink(&me, ROOT, b"a").unwrap();
        assert_eq!(files.lookup(&me, ROOT, b"a"), Err(Errno::NOENT));
        assert_eq!(files.attributes(attributes.ino, None).map(|now| (now.links, now.size)), Ok((0, 5)));
        files.forget(attributes.ino, 1);
        assert_eq!(files.attributes(attributes.ino, None).map(|_| ()), Err(Errno::STALE));
    }

    #[test]
    fn a_directory_is_not_moved_into_itself() {
        let (files, me) = files();
        let mut above = ROOT;
        for name in [b"a", b"b", b"c"] {
            above = files.make(&me, above, name, NewNode::Directory, 0o755).unwrap().ino;
        }
        let how = RenameOptions::default();
        assert_eq!(files.rename(&me, (ROOT, b"a"), (above, b"x"), how), Err(Errno::INVAL));
        let exchange = RenameOptions { exchange: true, ..how };
        assert_eq!(files.rename(&me, (ROOT, b"a"), (above, b"x"), exchange), Err(Errno::INVAL));
        assert_eq!(files.remove_directory(&me, ROOT, b"a"), Err(Errno::NOTEMPTY));
    }

    #[test]
    fn a_listing_goes_on_where_it_stopped_whatever_was_removed() {
        let (files, me) = files();
        let names: Vec<Vec<u8>> = (0..10).map(|name| format!("{name}").into_bytes()).collect();
        for name in &names {
            files.make(&me, ROOT, name, NewNode::Directory, 0o755).unwrap();
        }
        let (mut seen, mut cookie) = (Vec::new(), 0);
        files
            .list(ROOT, 0, 0, &mut |listed| {
                cookie = listed.cookie;
                seen.push(listed.name);
                seen.len() < 5
            })
            .unwrap();
        files.remove_directory(&me, ROOT, &seen[4]).unwrap();
        files
            .list(ROOT, 0, cookie, &mut |listed| {
                seen.push(listed.name);
                true
            })
            .unwrap();
        seen.sort();
        assert_eq!(seen, names);
    }
}
