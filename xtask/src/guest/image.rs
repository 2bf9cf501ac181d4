//! The initial RAM file system: a shell, the modules that reach the host's files, and the first script.

use std::path::Path;

use anyhow::Context;

use super::packages::System;

/// Modules without which the guest cannot reach the host.
const MODULES: &[&str] = &["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"];

const INIT: &str = include_str!("init.sh");

/// File types, with their permissions.
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// Writes the image for a system.
pub fn write(system: &System, path: &Path) -> anyhow::Result<()> {
    let mut archive = Archive::default();
    archive.add("bin", DIRECTORY, &[]);
    archive.add("modules", DIRECTORY, &[]);
    archive.add("bin/busybox", PROGRAM, &read(&system.busybox())?);
    archive.add("init", PROGRAM, INIT.as_bytes());
    for (index, file) in system.module_files(MODULES)?.iter().enumerate() {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        archive.add(&format!("modules/{index:02}-{name}"), PROGRAM, &read(file)?);
    }
    // A guest that is booting keeps the image that it opened.
    let fresh = path.with_extension("fresh");
    std::fs::write(&fresh, archive.finish()).with_context(|| format!("cannot write {}", fresh.display()))?;
    std::fs::rename(&fresh, path).with_context(|| format!("cannot rename the new image to {}", path.display()))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// An archive in the format that kernels unpack (cpio, `newc`).
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    files: u32,
}

impl Archive {
    /// Adds a file, whose folder must have been added before.
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.files += 1;
        let links = 1;
        let (name_len, content_len) = (name.len() as u32 + 1, content.len() as u32);
        self.bytes.extend_from_slice(b"070701");
        // Number, mode, owner, group, links, time, length, four device numbers, length of the name, checksum.
        for field in [self.files, mode, 0, 0, links, 0, content_len, 0, 0, 0, 0, name_len, 0] {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an archive as the kernel does.
    fn unpack(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut files = Vec::new();
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let field = |index: usize| {
                let digits = std::str::from_utf8(&bytes[6 + 8 * index..][..8]).unwrap();
                u32::from_str_radix(digits, 16).unwrap()
            };
            let (mode, content_len, name_len) = (field(1), field(6) as usize, field(11) as usize);
            let name_end = 110 + name_len;
            let name = std::str::from_utf8(&bytes[110..name_end - 1]).unwrap().to_string();
            assert_eq!(bytes[name_end - 1], 0);
            if name == "TRAILER!!!" {
                return files;
            }
            let content = name_end.next_multiple_of(4);
            files.push((name, mode, bytes[content..content + content_len].to_vec()));
            bytes = &bytes[(content + content_len).next_multiple_of(4)..];
        }
    }

    #[test]
    fn an_archive_holds_what_was_added_whatever_its_length() {
        let mut archive = Archive::default();
        archive.add("bin", DIRECTORY, &[]);
        let contents: [&[u8]; 4] = [b"1", b"22", b"333", b"4444"];
        for content in contents {
            archive.add(&format!("bin/{}", content.len()), PROGRAM, content);
        }
        let files = unpack(&archive.finish());
        assert_eq!(files[0], ("bin".into(), DIRECTORY, Vec::new()));
        for (content, file) in contents.iter().zip(&files[1..]) {
            assert_eq!(file, &(format!("bin/{}", content.len()), PROGRAM, content.to_vec()));
        }
        assert_eq!(files.len(), 5);
    }
}
