//! The user behind sudo, and the user that `run` starts the program as.
//!
//! sudo names its caller in `SUDO_UID` and `SUDO_GID`. They are taken as numbers: if the user database does not know
//! the user (a container's database, a directory service that is down), the program still runs with these numbers,
//! never as root.

use std::{
    env,
    ffi::{CString, OsString},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    unistd::{Gid, Uid, User, initgroups, setgid, setgroups, setuid},
};
use thiserror::Error;

/// The user is not known, or sudo's variables contradict each other.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CallerError {
    /// A name without a user.
    #[error("no such user: `{name}`")]
    NoUser {
        /// The given name.
        name: String,
    },
    /// A variable that should be a number.
    #[error("{variable} is `{value}`, not the number of a user or group: {ADVICE}")]
    NotANumber {
        /// Its name.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// sudo sets both.
    #[error("{set} is set and {missing} is not: {ADVICE}")]
    Incomplete {
        /// The variable that is set.
        set: &'static str,
        /// The missing one.
        missing: &'static str,
    },
}

const ADVICE: &str = "sudo sets SUDO_UID and SUDO_GID to the numbers of its caller; unset SUDO_UID, SUDO_GID and SUDO_USER to run as root";

const UID: &str = "SUDO_UID";
const GID: &str = "SUDO_GID";
const USER: &str = "SUDO_USER";

/// The user who called sudo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Number of the user, never root's.
    uid: u32,
    /// Number of the user's first group.
    gid: u32,
    /// Name as sudo gives it.
    name: Option<OsString>,
    /// Home as newer versions of sudo give it.
    home: Option<PathBuf>,
}

impl Caller {
    /// The user who called sudo, if this process is root and the user is not.
    pub fn find() -> Result<Option<Self>, CallerError> {
        if Uid::effective().is_root() { Self::of(|name| env::var_os(name)) } else { Ok(None) }
    }

    /// User and group that outputs are handed to.
    pub fn owner() -> Result<Option<(u32, u32)>, CallerError> {
        Ok(Self::find()?.map(|caller| (caller.uid, caller.gid)))
    }

    fn of(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, CallerError> {
        let name = variable(USER);
        let (uid, gid) = match (id(UID, variable(UID))?, id(GID, variable(GID))?) {
            (Some(0), _) => return Ok(None),
            (Some(uid), Some(gid)) => (uid, gid),
            (Some(_), None) => return Err(CallerError::Incomplete { set: UID, missing: GID }),
            (None, Some(_)) => return Err(CallerError::Incomplete { set: GID, missing: UID }),
            (None, None) if name.as_ref().is_some_and(|name| name != "root") => {
                return Err(CallerError::Incomplete { set: USER, missing: UID });
            }
            (None, None) => return Ok(None),
        };
        let home = variable("SUDO_HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        Ok(Some(Self { uid, gid, name: name.filter(|name| !name.is_empty()), home }))
    }
}

fn id(variable: &'static str, value: Option<OsString>) -> Result<Option<u32>, CallerError> {
    let Some(value) = value else { return Ok(None) };
    // The largest number stands for "no user" in system calls.
    let is_id = |id: &u32| *id != u32::MAX;
    let digits = value.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = digits.and_then(|text| text.parse().ok()).filter(is_id);
    let not = || CallerError::NotANumber { variable, value: value.to_string_lossy().escape_debug().to_string() };
    number.map(Some).ok_or_else(not)
}

/// The user that the program runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunAs {
    uid: Uid,
    gid: Gid,
    /// Name in the user database, for its other groups.
    known: Option<CString>,
    /// Values of `USER` and `LOGNAME`.
    name: OsString,
    home: PathBuf,
}

impl RunAs {
    /// `name` if given; else the user who called sudo; else `None`: the current user.
    pub fn choose(name: Option<&str>) -> Result<Option<Self>, CallerError> {
        let by_number = |uid| User::from_uid(Uid::from_raw(uid)).ok().flatten();
        if let Some(name) = name {
            let user = User::from_name(name).ok().flatten().or_else(|| by_number(name.parse().ok()?));
            return user.map(Self::known).map(Some).ok_or_else(|| CallerError::NoUser { name: name.to_owned() });
        }
        let Some(caller) = Caller::find()? else { return Ok(None) };
        Ok(Some(by_number(caller.uid).map_or_else(|| Self::unknown(caller), Self::known)))
    }

    fn known(user: User) -> Self {
        // A name with a zero byte is unknown.
        let known = CString::new(user.name.as_bytes()).ok();
        Self { uid: user.uid, gid: user.gid, known, name: user.name.into(), home: user.dir }
    }

    /// Without an entry in the user database: `HOME` is `/`, as sudo has it for such a user.
    fn unknown(caller: Caller) -> Self {
        let Caller { uid, gid, name, home } = caller;
        Self {
            uid: Uid::from_raw(uid),
            gid: Gid::from_raw(gid),
            known: None,
            name: name.unwrap_or_else(|| uid.to_string().into()),
            home: home.unwrap_or_else(|| Path::new("/").to_owned()),
        }
    }

    /// The warning about a user whom the user database does not know.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let Self { uid, gid, home, .. } = self;
        self.known.is_none().then(|| {
            format!(
                "the user database does not know user {uid} (SUDO_UID): the program runs as user {uid} with group {gid} alone, HOME={}",
                home.display()
            )
        })
    }

    /// Variables of the program's environment.
    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        vec![
            ("HOME".into(), self.home.clone().into_os_string()),
            ("USER".into(), self.name.clone()),
            ("LOGNAME".into(), self.name.clone()),
        ]
    }

    /// Makes this process, which has one thread, the user's for good.
    pub(crate) fn take_on(&self) -> nix::Result<()> {
        match &self.known {
            Some(name) => initgroups(name, self.gid)?,
            None => setgroups(&[self.gid])?,
        }
        setgid(self.gid)?;
        setuid(self.uid)?;
        // A system without the numbers would continue as root.
        if Uid::effective() == self.uid && Uid::current() == self.uid { Ok(()) } else { Err(Errno::EPERM) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<Caller>, CallerError> {
        Caller::of(|name| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| value.into()))
    }

    fn caller(uid: u32, gid: u32) -> Caller {
        Caller { uid, gid, name: None, home: None }
    }

    /// sudo's caller is taken by number; root's own sudo has no caller.
    #[test]
    fn callers_are_numbers() {
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[("SUDO_UID", "0"), ("SUDO_GID", "0"), ("SUDO_USER", "root")]), Ok(None));
        assert_eq!(of(&[("SUDO_USER", "root")]), Ok(None));
        assert_eq!(of(&[("SUDO_UID", "1000"), ("SUDO_GID", "100")]), Ok(Some(caller(1000, 100))));
        assert_eq!(of(&[("SUDO_UID", "4294967294"), ("SUDO_GID", "0")]), Ok(Some(caller(4_294_967_294, 0))));
        let whole = of(&[("SUDO_UID", "7"), ("SUDO_GID", "8"), ("SUDO_USER", "eve"), ("SUDO_HOME", "/h/eve")]);
        let expected = Caller { name: Some("eve".into()), home: Some("/h/eve".into()), ..caller(7, 8) };
        assert_eq!(whole, Ok(Some(expected)));
    }

    /// Variables that name no user are refused: none of them means root.
    #[test]
    fn damaged_variables_are_refused() {
        for bad in ["", "x", "-1", "+1", " 1", "1 ", "0x1", "1.0", "4294967295", "4294967296", "99999999999999999999"] {
            for (variable, other) in [("SUDO_UID", "SUDO_GID"), ("SUDO_GID", "SUDO_UID")] {
                let error = of(&[(variable, bad), (other, "1000")]).expect_err(bad).to_string();
                assert!(error.starts_with(&format!("{variable} is `{bad}`, not the number")), "{error}");
            }
        }
        for alone in ["SUDO_UID", "SUDO_GID"] {
            assert!(matches!(of(&[(alone, "1000")]), Err(CallerError::Incomplete { set, .. }) if set == alone));
        }
        assert!(of(&[("SUDO_USER", "eve")]).is_err());
        assert!(of(&[("SUDO_UID", "0"), ("SUDO_GID", "x")]).is_err());
    }

    /// A user without an entry gets the numbers, and never root's home.
    #[test]
    fn unknown_users_are_numbers() {
        let run_as = RunAs::unknown(caller(4_000_000_001, 4_000_000_002));
        assert_eq!((run_as.uid.as_raw(), run_as.gid.as_raw()), (4_000_000_001, 4_000_000_002));
        let text = |value: &str| OsString::from(value);
        let expected = [("HOME", "/"), ("USER", "4000000001"), ("LOGNAME", "4000000001")];
        assert_eq!(run_as.environment(), expected.map(|(name, value)| (text(name), text(value))));
        assert!(run_as.warning().is_some_and(|text| text.contains("4000000001")));
    }
}
