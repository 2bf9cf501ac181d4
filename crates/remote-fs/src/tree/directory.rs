//! The entries of a directory.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::protocol::Ino;

/// The entries of a directory, by name and in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Directory {
    names: BTreeMap<Arc<[u8]>, (Ino, u64)>,
    order: BTreeMap<u64, Arc<[u8]>>,
    /// Highest cookie that an entry ever had.
    last_cookie: u64,
}

/// Stored form: cookie, name and inode of each entry, and the highest cookie that an entry ever had.
#[derive(Serialize, Deserialize)]
struct Stored(Vec<(u64, serde_bytes::ByteBuf, Ino)>, u64);

impl Directory {
    /// Number of entries.
    pub fn len(&self) -> u64 {
        self.names.len() as u64
    }

    /// Whether the directory is empty.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The inode of a name.
    pub fn get(&self, name: &[u8]) -> Option<Ino> {
        self.names.get(name).map(|(ino, _)| *ino)
    }

    /// Entries after a cookie, in order: cookie, name, inode.
    pub fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &[u8], Ino)> {
        let behind = cookie.checked_add(1).map(|first| self.order.range(first..));
        behind.into_iter().flatten().map(|(cookie, name)| {
            let ino = self.get(name).unwrap_or_default();
            (*cookie, &name[..], ino)
        })
    }

    /// All entries: name, inode.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], Ino)> {
        self.names.iter().map(|(name, (ino, _))| (&name[..], *ino))
    }

    /// Gives a new name to an inode. The entry comes last in the order.
    pub fn insert(&mut self, name: &[u8], ino: Ino) {
        self.last_cookie += 1;
        let name: Arc<[u8]> = name.into();
        if let Some((_, old)) = self.names.insert(name.clone(), (ino, self.last_cookie)) {
            self.order.remove(&old);
        }
        self.order.insert(self.last_cookie, name);
    }

    /// Makes a name refer to another inode, at the same place in the order.
    pub fn replace(&mut self, name: &[u8], ino: Ino) {
        match self.names.get_mut(name) {
            Some(entry) => entry.0 = ino,
            None => self.insert(name, ino),
        }
    }

    /// Removes a name.
    pub fn remove(&mut self, name: &[u8]) {
        if let Some((_, cookie)) = self.names.remove(name) {
            self.order.remove(&cookie);
        }
    }
}

impl From<Directory> for Stored {
    fn from(directory: Directory) -> Self {
        let entries =
            directory.after(0).map(|(cookie, name, ino)| (cookie, serde_bytes::ByteBuf::from(name), ino)).collect();
        Self(entries, directory.last_cookie)
    }
}

impl From<Stored> for Directory {
    fn from(Stored(entries, last_cookie): Stored) -> Self {
        let mut directory = Self { last_cookie, ..Self::default() };
        for (cookie, name, ino) in entries {
            let name: Arc<[u8]> = name.into_vec().into();
            directory.last_cookie = directory.last_cookie.max(cookie);
            directory.order.insert(cookie, name.clone());
            directory.names.insert(name, (ino, cookie));
        }
        directory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Directory, after: u64) -> Vec<(u64, &[u8])> {
        directory.after(after).map(|(cookie, name, _)| (cookie, name)).collect()
    }

    #[test]
    fn entries_keep_their_place_and_new_ones_come_last() {
        let mut directory = Directory::default();
        for (name, ino) in [(b"c", 1), (b"a", 2), (b"b", 3)] {
            directory.insert(name, Ino(ino));
        }
        assert_eq!(names(&directory, 0), [(1, &b"c"[..]), (2, b"a"), (3, b"b")]);
        directory.remove(b"a");
        directory.insert(b"a", Ino(4));
        directory.replace(b"c", Ino(5));
        assert_eq!(names(&directory, 1), [(3, &b"b"[..]), (4, b"a")]);
        assert_eq!((directory.get(b"c"), directory.len()), (Some(Ino(5)), 3));
        assert_eq!(names(&directory, u64::MAX), []);
        let stored = postcard::to_allocvec(&directory).unwrap();
        assert_eq!(postcard::from_bytes::<Directory>(&stored).unwrap(), directory);
    }

    #[test]
    fn a_place_is_not_given_again_once_its_entry_is_gone_and_the_directory_was_stored() {
        let mut directory = Directory::default();
        directory.insert(b"a", Ino(1));
        directory.remove(b"a");
        let mut stored: Directory = postcard::from_bytes(&postcard::to_allocvec(&directory).unwrap()).unwrap();
        stored.insert(b"b", Ino(2));
        assert_eq!(names(&stored, 0), [(2, &b"b"[..])]);
    }
}
