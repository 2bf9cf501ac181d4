//! Folders for the data of other systems.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;

/// Removes its folder once its standard input has ended. A program in the folder may be ending at the same time.
const REMOVE: &str = r#"cat > /dev/null; for _ in 1 2 3 4 5 6 7 8 9; do rm -rf -- "$0" && exit; sleep 0.1; done"#;

/// An empty folder of this process's own. It is removed when this is dropped, or when this process ends, for whatever
/// reason.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    remover: Child,
    /// Ends with this process.
    stdin: Option<ChildStdin>,
}

impl Folder {
    /// Creates a folder on a file system that lies in memory (`/dev/shm`).
    ///
    /// # Errors
    ///
    /// Those of the system, also where there is no such file system: results from a disk would be others.
    pub fn in_memory() -> anyhow::Result<Self> {
        Self::create(Path::new("/dev/shm"))
    }

    /// Creates a folder in `parent`, which is created if need be and stays.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn create(parent: &Path) -> anyhow::Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("sinew-peers-{}-{number}", std::process::id()));
        std::fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
        let mut remover = Command::new("sh");
        // Ctrl-C, which a terminal sends to all processes of a group, does not reach it.
        remover.args(["-c", REMOVE]).arg(&path).process_group(0);
        let remover = remover.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut remover = remover.context("starting sh")?;
        let folder = Self { path, stdin: remover.stdin.take(), remover };
        // An older process with the same number may have left one.
        let _ = std::fs::remove_dir_all(&folder.path);
        std::fs::create_dir(&folder.path).with_context(|| format!("making {}", folder.path.display()))?;
        Ok(folder)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.remover.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_folder_goes_with_all_that_is_in_it() {
        let folder = Folder::create(&std::env::temp_dir()).unwrap();
        let (path, other) = (folder.path().to_owned(), Folder::create(&std::env::temp_dir()).unwrap());
        assert_ne!(path, other.path());
        std::fs::create_dir(path.join("a")).unwrap();
        std::fs::write(path.join("a/b"), "c").unwrap();
        drop(folder);
        assert!(!path.exists() && other.path().is_dir());
    }

    /// This test runs itself in another process, which makes a folder and is killed.
    #[test]
    fn a_folder_goes_with_a_process_that_is_killed() {
        const INNER: &str = "SINEW_PEERS_MAKES_FOLDER";
        if std::env::var_os(INNER).is_some() {
            let folder = Folder::create(&std::env::temp_dir()).unwrap();
            std::fs::write(folder.path().join("a"), "b").unwrap();
            println!("<{}>", folder.path().display());
            std::thread::sleep(Duration::from_secs(600));
        }
        let mut inner = Command::new(std::env::current_exe().unwrap());
        inner.args(["--exact", "folder::tests::a_folder_goes_with_a_process_that_is_killed", "--nocapture"]);
        let mut inner = inner.env(INNER, "1").stdout(Stdio::piped()).spawn().unwrap();
        let mut text = String::new();
        let mut output = BufReader::new(inner.stdout.take().unwrap());
        while !text.contains('>') {
            assert!(output.read_line(&mut text).unwrap() > 0, "{text}");
        }
        let path = Path::new(text.split(['<', '>']).nth(1).unwrap());
        let was_there = path.join("a").exists();
        inner.kill().unwrap();
        inner.wait().unwrap();
        let began = Instant::now();
        while path.exists() {
            assert!(began.elapsed() < Duration::from_secs(60), "{} is still there", path.display());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(was_there);
    }
}
