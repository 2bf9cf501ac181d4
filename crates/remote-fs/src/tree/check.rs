//! Whether a tree is one.

use std::collections::{BTreeMap, BTreeSet};

use super::inode::Body;
use super::state::Tree;
use crate::protocol::Ino;

/// What is wrong with a tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Wrong {
    /// No directory that can be reached has it.
    #[error("inode {} has no name that can be reached from the root", ino.0)]
    Unreachable {
        /// Which.
        ino: Ino,
    },
    /// A name's inode is not there.
    #[error("directory {} has the name {name:?} for inode {}, which is not there", directory.0, ino.0)]
    NoInode {
        /// Whose name.
        directory: Ino,
        /// The name.
        name: String,
        /// The inode.
        ino: Ino,
    },
    /// It says another number of links than it has.
    #[error("inode {} has {found} links and says that it has {said}", ino.0)]
    Links {
        /// Which.
        ino: Ino,
        /// What it says.
        said: u32,
        /// What it has.
        found: u32,
    },
    /// A directory says that another one is above it, or has several names.
    #[error("directory {} has a name in directory {}, and says that another one is above it", ino.0, above.0)]
    Above {
        /// Which.
        ino: Ino,
        /// Where it has a name.
        above: Ino,
    },
    /// It is in the list of those without a name and has one, or the other way round.
    #[error("inode {} is listed wrongly among those without a name", ino.0)]
    Orphan {
        /// Which.
        ino: Ino,
    },
    /// Numbers were given that are to come.
    #[error("inode {} has a number that is not given yet", ino.0)]
    Number {
        /// Which.
        ino: Ino,
    },
}

impl Tree {
    /// All that is wrong.
    pub fn check(&self) -> Vec<Wrong> {
        let mut wrong = Vec::new();
        let mut links: BTreeMap<Ino, u32> = [(Ino::ROOT, 2)].into();
        let (mut reached, mut next) = (BTreeSet::from([Ino::ROOT]), vec![Ino::ROOT]);
        while let Some(directory) = next.pop() {
            let Some(Body::Directory(entries, _)) = self.inodes.get(&directory).map(|inode| &inode.body) else {
                continue;
            };
            for (name, ino) in entries.entries() {
                let Some(inode) = self.inodes.get(&ino) else {
                    let name = String::from_utf8_lossy(name).into_owned();
                    wrong.push(Wrong::NoInode { directory, name, ino });
                    continue;
                };
                let is_first = reached.insert(ino);
                match &inode.body {
                    Body::Directory(_, above) => {
                        if *above != directory || !is_first {
                            wrong.push(Wrong::Above { ino, above: directory });
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
            let (said, found) = (inode.links, links.get(&ino).copied().unwrap_or_default());
            let is_orphan = self.orphans.contains(&ino);
            if said != found {
                wrong.push(Wrong::Links { ino, said, found });
            }
            if is_orphan != (said == 0) {
                wrong.push(Wrong::Orphan { ino });
            }
            if !is_orphan && !reached.contains(&ino) {
                wrong.push(Wrong::Unreachable { ino });
            }
            if ino > self.last_ino {
                wrong.push(Wrong::Number { ino });
            }
        }
        let lost = self.orphans.iter().filter(|ino| !self.inodes.contains_key(ino));
        wrong.extend(lost.map(|ino| Wrong::Orphan { ino: *ino }));
        wrong
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
        let found = |break_it: fn(&mut Tree, Ino, Ino), expected: &[Wrong]| {
            let mut broken = tree.clone();
            break_it(&mut broken, directory, link);
            assert_eq!(broken.check(), expected);
        };
        let ino = link;
        found(|tree, _, link| tree.inode_mut(link).unwrap().links = 2, &[Wrong::Links { ino, said: 2, found: 1 }]);
        found(|tree, _, link| assert!(tree.orphans.insert(link)), &[Wrong::Orphan { ino }]);
        found(|tree, _, _| tree.last_ino = Ino(2), &[Wrong::Number { ino }]);
        found(
            |tree, _, link| assert!(tree.inodes.remove(&link).is_some()),
            &[Wrong::NoInode { directory, name: "s".into(), ino }],
        );
        found(
            |tree, directory, _| tree.directory_mut(directory).unwrap().remove(b"s"),
            &[Wrong::Links { ino, said: 1, found: 0 }, Wrong::Unreachable { ino }],
        );
        found(
            |tree, directory, _| tree.directory_mut(directory).unwrap().insert(b"x", directory),
            &[Wrong::Above { ino: directory, above: directory }, Wrong::Links { ino: directory, said: 2, found: 5 }],
        );
    }
}
