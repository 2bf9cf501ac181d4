//! A tree compared with a table of names.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::protocol::{Answer, Caller, Error, Ino, Kind, Request, SetAttr, Time};
use crate::tree::{Context, Tree};

/// Inodes by directory and name, and their kinds. A directory has one name.
#[derive(Clone, Debug)]
struct Model {
    names: BTreeMap<(Ino, Vec<u8>), Ino>,
    kinds: BTreeMap<Ino, Kind>,
    sizes: BTreeMap<Ino, u64>,
    last: u64,
}

impl Model {
    fn new() -> Self {
        Self { names: BTreeMap::new(), kinds: [(Ino::ROOT, Kind::Directory)].into(), sizes: BTreeMap::new(), last: 1 }
    }

    fn is_directory(&self, ino: Ino) -> bool {
        self.kinds.get(&ino) == Some(&Kind::Directory)
    }

    fn is_empty(&self, ino: Ino) -> bool {
        !self.names.keys().any(|(directory, _)| *directory == ino)
    }

    fn parent_of(&self, ino: Ino) -> Option<Ino> {
        self.names.iter().find(|(_, named)| **named == ino).map(|((directory, _), _)| *directory)
    }

    /// Whether `ino` is `other`, or below it.
    fn is_below(&self, ino: Ino, other: Ino) -> bool {
        ino == other || self.parent_of(ino).is_some_and(|above| self.is_below(above, other))
    }

    fn links(&self, ino: Ino) -> u32 {
        if !self.is_directory(ino) {
            return self.names.values().filter(|named| **named == ino).count() as u32;
        }
        if ino != Ino::ROOT && self.parent_of(ino).is_none() {
            return 0;
        }
        let below = self.names.iter().filter(|((directory, _), named)| *directory == ino && self.is_directory(**named));
        2 + below.count() as u32
    }

    fn directory(&self, ino: Ino) -> Result<(), Error> {
        match self.kinds.get(&ino) {
            None => Err(Error::Stale),
            Some(Kind::Directory) => Ok(()),
            Some(_) => Err(Error::NotDirectory),
        }
    }

    fn find(&self, parent: Ino, name: &[u8]) -> Result<Ino, Error> {
        self.directory(parent)?;
        self.names.get(&(parent, name.to_vec())).copied().ok_or(Error::NotFound)
    }

    fn insert(&mut self, parent: Ino, name: &[u8], ino: Option<Ino>) -> Result<(), Error> {
        match self.find(parent, name) {
            Ok(_) => return Err(Error::Exists),
            Err(Error::NotFound) => {}
            Err(error) => return Err(error),
        }
        if self.links(parent) == 0 {
            return Err(Error::NotFound);
        }
        let ino = ino.unwrap_or_else(|| {
            self.last += 1;
            Ino(self.last)
        });
        self.names.insert((parent, name.to_vec()), ino);
        Ok(())
    }

    fn make(&mut self, parent: Ino, name: &[u8], kind: Kind) -> Result<(), Error> {
        self.insert(parent, name, None)?;
        self.kinds.insert(Ino(self.last), kind);
        if kind == Kind::File {
            self.sizes.insert(Ino(self.last), 0);
        }
        Ok(())
    }

    fn change(&mut self, request: &Request) -> Result<(), Error> {
        match request {
            Request::Create { parent, name, .. } => self.make(*parent, name, Kind::File),
            Request::MakeDirectory { parent, name, .. } => self.make(*parent, name, Kind::Directory),
            Request::MakeSymlink { parent, name, .. } => self.make(*parent, name, Kind::Symlink),
            Request::Link { ino, parent, name } => {
                if !self.kinds.contains_key(ino) {
                    return Err(Error::Stale);
                }
                if self.is_directory(*ino) {
                    return Err(Error::Permission);
                }
                if self.links(*ino) == 0 {
                    return Err(Error::NotFound);
                }
                self.insert(*parent, name, Some(*ino))
            }
            Request::Unlink { parent, name } => {
                if self.is_directory(self.find(*parent, name)?) {
                    return Err(Error::IsDirectory);
                }
                self.names.remove(&(*parent, name.clone()));
                Ok(())
            }
            Request::RemoveDirectory { parent, name } => {
                let ino = self.find(*parent, name)?;
                self.directory(ino)?;
                if !self.is_empty(ino) {
                    return Err(Error::NotEmpty);
                }
                self.names.remove(&(*parent, name.clone()));
                Ok(())
            }
            Request::Rename { parent, name, new_parent, new_name, flags } => {
                self.rename((*parent, name), (*new_parent, new_name), *flags)
            }
            Request::SetAttr { ino, set, .. } => {
                let kind = self.kinds.get(ino).ok_or(Error::Stale)?;
                if *kind == Kind::Directory {
                    return Err(Error::IsDirectory);
                }
                let size = self.sizes.get_mut(ino).ok_or(Error::Invalid)?;
                *size = set.size.unwrap_or(*size);
                Ok(())
            }
            _ => unreachable!(),
        }
    }

    fn rename(&mut self, from: (Ino, &Vec<u8>), to: (Ino, &Vec<u8>), flags: u32) -> Result<(), Error> {
        let ino = self.find(from.0, from.1)?;
        let old = match self.find(to.0, to.1) {
            Ok(old) => Some(old),
            Err(Error::NotFound) => None,
            Err(error) => return Err(error),
        };
        match (flags, old) {
            (1, Some(_)) => return Err(Error::Exists),
            (2, None) | (_, None) if flags == 2 || self.links(to.0) == 0 => return Err(Error::NotFound),
            (_, Some(old)) if old == ino => return Ok(()),
            _ => {}
        }
        if self.is_directory(ino) && self.is_below(to.0, ino) {
            return Err(Error::Invalid);
        }
        if let (2, Some(old)) = (flags, old) {
            if self.is_directory(old) && self.is_below(from.0, old) {
                return Err(Error::Invalid);
            }
            self.names.insert((from.0, from.1.clone()), old);
            self.names.insert((to.0, to.1.clone()), ino);
            return Ok(());
        }
        match old.map(|old| (self.is_directory(ino), self.is_directory(old), self.is_empty(old))) {
            Some((false, true, _)) => return Err(Error::IsDirectory),
            Some((true, false, _)) => return Err(Error::NotDirectory),
            Some((true, true, false)) => return Err(Error::NotEmpty),
            _ => {}
        }
        self.names.remove(&(from.0, from.1.clone()));
        self.names.insert((to.0, to.1.clone()), ino);
        Ok(())
    }
}

fn request() -> impl Strategy<Value = Request> {
    let ino = || (1_u64..14).prop_map(Ino);
    let name = || prop::sample::select(vec![b"a".to_vec(), b"b".to_vec(), b"c".to_vec()]);
    let place = || (ino(), name());
    prop_oneof![
        3 => place().prop_map(|(parent, name)| Request::Create {
            parent, name, mode: 0o644, handle: 0, access: Default::default()
        }),
        4 => place().prop_map(|(parent, name)| Request::MakeDirectory { parent, name, mode: 0o755 }),
        1 => place().prop_map(|(parent, name)| Request::MakeSymlink { parent, name, target: b"t".to_vec() }),
        2 => (ino(), place()).prop_map(|(ino, (parent, name))| Request::Link { ino, parent, name }),
        2 => place().prop_map(|(parent, name)| Request::Unlink { parent, name }),
        2 => place().prop_map(|(parent, name)| Request::RemoveDirectory { parent, name }),
        6 => (place(), place(), 0_u32..3).prop_map(|((parent, name), (new_parent, new_name), flags)| {
            Request::Rename { parent, name, new_parent, new_name, flags }
        }),
        1 => (ino(), 0_u64..9000).prop_map(|(ino, size)| Request::SetAttr {
            ino, set: SetAttr { size: Some(size), ..SetAttr::default() }, handle: None
        }),
    ]
}

fn names_of(tree: &Tree) -> BTreeMap<(Ino, Vec<u8>), Ino> {
    let mut names = BTreeMap::new();
    for (ino, inode) in tree.inodes().filter(|(_, inode)| inode.kind() == Kind::Directory) {
        let (entries, is_end, _) = tree.entries(ino, 0, |_| true).unwrap();
        assert!(is_end && inode.attr(ino).size == entries.len() as u64);
        names.extend(entries.into_iter().map(|entry| ((ino, entry.name), entry.attr.ino)));
    }
    names
}

proptest! {
    #[test]
    fn a_tree_is_as_a_table_of_its_names(requests in prop::collection::vec((request(), any::<bool>()), 1..120)) {
        let (mut tree, mut model) = (Tree::new(Time::default()), Model::new());
        let caller = Caller::default();
        for (index, (request, drops)) in requests.iter().enumerate() {
            let before = tree.clone();
            let context = Context { caller: &caller, now: Time { s: index as i64, ns: 0 }, opened: None };
            let result = tree.change(context, request, &mut Vec::new());
            prop_assert_eq!(result.clone().map(|_| ()), model.change(request), "{:?}", request);
            if result.is_err() {
                prop_assert_eq!(&tree, &before, "it changed something and failed");
            }
            if let (Ok(Answer::Unlinked(attr)), true) = (result, drops) {
                prop_assert_eq!(tree.drop_orphan(attr.ino, &mut Vec::new()), attr.links == 0);
                if attr.links == 0 {
                    model.kinds.remove(&attr.ino);
                    model.sizes.remove(&attr.ino);
                }
            }
            prop_assert_eq!(tree.check(), []);
            prop_assert_eq!(&names_of(&tree), &model.names);
            for (ino, inode) in tree.inodes() {
                let attr = inode.attr(ino);
                prop_assert_eq!(model.kinds.get(&ino), Some(&attr.kind));
                prop_assert_eq!(attr.links, model.links(ino), "links of {:?}", ino);
                if let Some(size) = model.sizes.get(&ino) {
                    prop_assert_eq!(attr.size, *size);
                }
            }
            prop_assert_eq!(tree.len(), model.kinds.len() as u64);
        }
        let stored = postcard::to_allocvec(&tree).unwrap();
        let mut read: Tree = postcard::from_bytes(&stored).unwrap();
        read.recount();
        prop_assert_eq!(read, tree);
    }
}
