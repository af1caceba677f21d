//! Tests of `folder`.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{lchown, symlink};

use super::*;

fn open(path: &Path) -> io::Result<Folder> {
    Folder::open(path, None, &Made::default())
}

fn leads_to(folder: &Folder) -> PathBuf {
    fs::read_link(handle_path(&folder.handle)).expect("an open folder")
}

/// Paths mean the same as to the kernel: links, `..` and `.` included; links in a circle or to nowhere end.
#[test]
fn paths_are_walked_like_the_kernel_does() {
    let place = tempfile::tempdir().expect("a folder");
    let base = place.path().canonicalize().expect("a path");
    fs::create_dir_all(base.join("real/deep")).expect("folders");
    symlink("real", base.join("relative")).expect("a link");
    symlink(base.join("real/deep"), base.join("absolute")).expect("a link");
    symlink("../relative/deep", base.join("real/back")).expect("a link");
    symlink("circle", base.join("circle")).expect("a link");
    symlink("nowhere/else", base.join("dangling")).expect("a link");
    for (path, expected) in [
        ("real/deep", "real/deep"),
        ("relative/deep", "real/deep"),
        ("relative/back/../deep/./", "real/deep"),
        ("absolute/..", "real"),
        ("absolute/new/er", "real/deep/new/er"),
    ] {
        assert_eq!(leads_to(&open(&base.join(path)).expect(path)), base.join(expected), "{path}");
    }
    let failure = |path: &str| open(&base.join(path)).expect_err(path);
    assert_eq!(failure("circle/x").raw_os_error(), Some(libc::ELOOP));
    assert_eq!(failure("dangling").kind(), io::ErrorKind::NotFound);
    fs::write(base.join("file"), "").expect("a file");
    assert_eq!(failure("file/x").kind(), io::ErrorKind::NotADirectory);
}

/// Makes sure that root does not follow a link of another user, except of the one that it works for.
#[test]
fn links_of_others_are_refused() {
    let place = tempfile::tempdir().expect("a folder");
    // SAFETY: has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let link = place.path().join("link");
    symlink("/tmp", &link).expect("a link");
    assert!(open(&link.join("x")).is_ok_and(|_| fs::remove_dir("/tmp/x").is_ok()), "a link of root's");
    lchown(&link, Some(54_321), None).expect("given away");
    let error = open(&link).expect_err("a link of another's").to_string();
    assert!(error.contains("`link` is a link of user 54321"), "{error}");
    assert!(FilePlace::reach(&link, None).is_err() && FilePlace::reach(&link.join("x"), None).is_err());
    let owner = Some((54_321, 54_321));
    assert_eq!(leads_to(&Folder::open(&link, owner, &Made::default()).expect("its own")), Path::new("/tmp"));
}

/// Files are written through links of the kernel's, and never through another link that is put there.
#[test]
fn files_are_written_where_they_were_reached() {
    let (mut reader, writer) = io::pipe().expect("a pipe");
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let place = FilePlace::reach(Path::new(&path), None).expect("reached");
    place.overwrite().expect("a pipe").write_all(b"text").expect("written");
    drop(writer);
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("readable");
    assert_eq!(text, "text");

    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("victim"), "theirs").expect("a file");
    let place = FilePlace::reach(&folder.path().join("new"), None).expect("reached");
    symlink("victim", folder.path().join("new")).expect("a link");
    assert!(place.create_new().is_err() && place.overwrite().is_err());
    assert_eq!(fs::read_to_string(folder.path().join("victim")).expect("readable"), "theirs");
}

/// The entries of a run are removed with it, and no others.
#[test]
fn discarding_leaves_what_others_have_made() {
    let place = tempfile::tempdir().expect("a folder");
    let made = Made::default();
    let folder = Folder::open(&place.path().join("a/b"), None, &made).expect("made");
    folder.create("gone", 0o600, None, &made).expect("made");
    folder.create("replaced", 0o600, None, &made).expect("made");
    fs::write(place.path().join("a/b/theirs"), "theirs").expect("a file");
    fs::rename(place.path().join("a/b/theirs"), place.path().join("a/b/replaced")).expect("replaced");
    made.discard();
    assert_eq!(fs::read_to_string(place.path().join("a/b/replaced")).expect("still there"), "theirs");
    assert!(!place.path().join("a/b/gone").exists());

    let made = Made::default();
    Folder::open(&place.path().join("x/y"), None, &made).expect("made");
    made.discard();
    assert!(!place.path().join("x").exists());
    let made = Made::default();
    Folder::open(&place.path().join("x/y"), None, &made).expect("made");
    made.keep();
    made.discard();
    assert!(place.path().join("x/y").is_dir());
}

/// Makes sure that only a regular file makes room for a new one: a pipe (or a device, as `/dev/null`) stays.
#[test]
fn only_regular_files_make_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, pipe) = (folder.path().join("file"), folder.path().join("pipe"));
    fs::write(&file, "old").expect("a file");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).expect("a pipe");
    let remove_old = |path: &Path| FilePlace::reach(path, None).and_then(|place| place.remove_old());
    remove_old(&file).expect("removed");
    remove_old(&file).expect("nothing to remove");
    let error = remove_old(&pipe).expect_err("no regular file");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(!file.exists() && pipe.exists());
}
