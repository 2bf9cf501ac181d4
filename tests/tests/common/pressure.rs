//! A program that needs more memory than it may have.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common;

/// Variables that make a copy of this program use memory: the amount in bytes; and, if it is to go on, the file whose
/// creation ends it.
const HOG: &str = "SINEW_TEST_HOG";
const UNTIL: &str = "SINEW_TEST_HOG_UNTIL";
const PAGE: usize = 4096;

/// A control group that limits the memory of its programs; removed when dropped.
pub struct Group {
    folder: PathBuf,
    /// Names of the files that hold its limit and its use of memory.
    files: [&'static str; 2],
}

impl Group {
    pub fn new(limit: usize) -> Option<Self> {
        let name = common::unique("sinew-swap");
        let (first, second) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let (parent, files) = if first.join("memory.limit_in_bytes").exists() {
            (first, ["memory.limit_in_bytes", "memory.usage_in_bytes"])
        } else {
            std::fs::write(second.join("cgroup.subtree_control"), "+memory").ok()?;
            (second, ["memory.max", "memory.current"])
        };
        let group = Self { folder: parent.join(name), files };
        std::fs::create_dir(&group.folder).ok()?;
        std::fs::write(group.folder.join(files[0]), limit.to_string()).ok()?;
        Some(group)
    }

    /// Limits its programs to `more` bytes beyond the memory that they have now.
    pub fn limit_to_more(&self, more: usize) {
        let [limit, usage] = self.files.map(|file| self.folder.join(file));
        let used: usize = std::fs::read_to_string(usage).unwrap().trim().parse().unwrap();
        std::fs::write(limit, (used + more).to_string()).unwrap();
    }

    /// Returns a command that runs in the group.
    pub fn with(&self, command: &Command) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.folder.join("cgroup.procs"));
        shell.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        shell
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        common::eventually("the group's programs are gone", || std::fs::remove_dir(&self.folder).is_ok());
    }
}

/// Runs this program again, to write to this much memory and check it. `test` is the name of the test that calls
/// [`use_memory_if_told`].
pub fn hog(test: &str, used: usize) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(HOG, used.to_string());
    command
}

/// As [`hog`], but goes on until a file exists.
pub fn hog_until(test: &str, used: usize, file: &Path) -> Command {
    let mut command = hog(test, used);
    command.env(UNTIL, file);
    command
}

/// Memory whose pages hold their number, and how often they were written.
struct Pages {
    words: Vec<u64>,
    rounds: Vec<u64>,
    looks: u64,
}

fn word(page: usize, round: u64) -> u64 {
    if round == 0 { 0 } else { (page as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ round }
}

impl Pages {
    fn len(&self) -> usize {
        self.rounds.len()
    }

    /// Checks a page, and writes it anew.
    fn visit(&mut self, page: usize) {
        let at = page * PAGE / 8;
        let whole = &mut self.words[at..at + PAGE / 8];
        let round = &mut self.rounds[page];
        let before = word(page, *round);
        assert!(whole.iter().all(|found| *found == before), "page {page}, written {round} times");
        *round += 1;
        whole.fill(word(page, *round));
        self.looks += 1;
    }
}

/// Uses memory in a program that [`hog`] started; does nothing in others.
pub fn use_memory_if_told() {
    let Some(len) = std::env::var(HOG).ok().and_then(|len| len.parse::<usize>().ok()) else { return };
    let until = std::env::var_os(UNTIL).map(PathBuf::from);
    let pages = len / PAGE;
    let mut memory = Pages { words: vec![0; len / 8], rounds: vec![0; pages], looks: 0 };
    // Visits pages in order, which the kernel reads ahead for, and then scattered: 7919 is prime, so each page has its
    // turn once.
    (0..2).for_each(|_| (0..pages).for_each(|page| memory.visit(page)));
    let mut step = 0;
    let goes_on = |step: usize| match &until {
        None => step < pages / 8,
        // Looks for the file only now and then.
        Some(file) => !step.is_multiple_of(64) || !file.exists(),
    };
    while goes_on(step) {
        memory.visit(step * 7919 % pages);
        step += 1;
    }
    (0..memory.len()).for_each(|page| memory.visit(page));
    println!("{} pages were right", memory.looks);
}
