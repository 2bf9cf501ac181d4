//! A consistency check of a tree.

use std::collections::{BTreeMap, BTreeSet};

use super::inode::Body;
use super::state::Tree;
use crate::protocol::Ino;

/// An inconsistency of a tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Inconsistency {
    /// An inode cannot be reached from the root.
    #[error("inode {} has no name that can be reached from the root", ino.0)]
    Unreachable {
        /// The inode.
        ino: Ino,
    },
    /// A name refers to an inode that does not exist.
    #[error("directory {} has the name {name:?} for inode {}, which does not exist", directory.0, ino.0)]
    NoInode {
        /// The directory with the name.
        directory: Ino,
        /// The name.
        name: String,
        /// The missing inode.
        ino: Ino,
    },
    /// The link count of an inode is wrong.
    #[error("inode {} has {found} links, but a link count of {stored}", ino.0)]
    Links {
        /// The inode.
        ino: Ino,
        /// Its link count.
        stored: u32,
        /// The links found.
        found: u32,
    },
    /// A directory has several names, or records a parent other than the directory that has its name.
    #[error("directory {} has a name in directory {}, but another parent or another name", ino.0, above.0)]
    Parent {
        /// The directory.
        ino: Ino,
        /// The directory that has its name.
        above: Ino,
    },
    /// An inode with a name is listed as an orphan, or one without a name is not.
    #[error("inode {} is listed as an orphan although it has a name, or the other way round", ino.0)]
    Orphan {
        /// The inode.
        ino: Ino,
    },
    /// An inode has a number that was not assigned yet.
    #[error("inode {} has a number that was not assigned yet", ino.0)]
    Number {
        /// The inode.
        ino: Ino,
    },
}

impl Tree {
    /// Finds all inconsistencies.
    pub fn check(&self) -> Vec<Inconsistency> {
        let mut inconsistencies = Vec::new();
        let mut links: BTreeMap<Ino, u32> = [(Ino::ROOT, 2)].into();
        let (mut reached, mut next) = (BTreeSet::from([Ino::ROOT]), vec![Ino::ROOT]);
        while let Some(directory) = next.pop() {
            let Some(Body::Directory(entries, _)) = self.inodes.get(&directory).map(|inode| &inode.body) else {
                continue;
            };
            for (name, ino) in entries.entries() {
                let Some(inode) = self.inodes.get(&ino) else {
                    let name = String::from_utf8_lossy(name).into_owned();
                    inconsistencies.push(Inconsistency::NoInode { directory, name, ino });
                    continue;
                };
                let is_first = reached.insert(ino);
                match &inode.body {
                    Body::Directory(_, above) => {
                        if *above != directory || !is_first {
                            inconsistencies.push(Inconsistency::Parent { ino, above: directory });
                        }
                        *links.entry(directory).or_default() += 1;
                        *links.entry(ino).or_default() += 2;
                        if is_first {
                            next.push(ino);
                        }
                    }
                    _ => *links.entry(ino).or_default() += 1,
                }
            }
        }
        for (&ino, inode) in &self.inodes {
            let (stored, found) = (inode.links, links.get(&ino).copied().unwrap_or_default());
            let is_orphan = self.orphans.contains(&ino);
            if stored != found {
                inconsistencies.push(Inconsistency::Links { ino, stored, found });
            }
            if is_orphan != (stored == 0) {
                inconsistencies.push(Inconsistency::Orphan { ino });
            }
            if !is_orphan && !reached.contains(&ino) {
                inconsistencies.push(Inconsistency::Unreachable { ino });
            }
            if ino > self.last_ino {
                inconsistencies.push(Inconsistency::Number { ino });
            }
        }
        let lost = self.orphans.iter().filter(|ino| !self.inodes.contains_key(ino));
        inconsistencies.extend(lost.map(|ino| Inconsistency::Orphan { ino: *ino }));
        inconsistencies
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Caller, Request, Time};
    use crate::tree::Context;

    fn tree() -> (Tree, Ino, Ino) {
        let mut tree = Tree::new(Time::default());
        let caller = Caller::default();
        let context = Context { caller: &caller, now: Time::default(), opened: None };
        let mut change = |request: Request| tree.change(context, &request, &mut Vec::new()).unwrap();
        change(Request::MakeDirectory { parent: Ino::ROOT, name: b"d".to_vec(), mode: 0o755 });
        change(Request::MakeSymlink { parent: Ino(2), name: b"s".to_vec(), target: b"t".to_vec() });
        (tree, Ino(2), Ino(3))
    }

    #[test]
    fn whatever_is_wrong_is_found() {
        let (tree, directory, link) = tree();
        assert_eq!(tree.check(), []);
        let found = |break_it: fn(&mut Tree, Ino, Ino), expected: &[Inconsistency]| {
            let mut broken = tree.clone();
            break_it(&mut broken, directory, link);
            assert_eq!(broken.check(), expected);
        };
        let ino = link;
        found(
            |tree, _, link| tree.inode_mut(link).unwrap().links = 2,
            &[Inconsistency::Links { ino, stored: 2, found: 1 }],
        );
        found(|tree, _, link| assert!(tree.orphans.insert(link)), &[Inconsistency::Orphan { ino }]);
        found(|tree, _, _| tree.last_ino = Ino(2), &[Inconsistency::Number { ino }]);
        found(
            |tree, _, link| assert!(tree.inodes.remove(&link).is_some()),
            &[Inconsistency::NoInode { directory, name: "s".into(), ino }],
        );
        found(
            |tree, directory, _| tree.directory_mut(directory).unwrap().remove(b"s"),
            &[Inconsistency::Links { ino, stored: 1, found: 0 }, Inconsistency::Unreachable { ino }],
        );
        found(
            |tree, directory, _| tree.directory_mut(directory).unwrap().insert(b"x", directory),
            &[
                Inconsistency::Parent { ino: directory, above: directory },
                Inconsistency::Links { ino: directory, stored: 2, found: 5 },
            ],
        );
    }
}
