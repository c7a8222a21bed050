//! Sessions of browsers, and the one-time codes that start them.
//!
//! A code is made for a caller that was identified in another way: by the kernel, a token or a
//! certificate. The code starts one session of that caller. Secrets are random numbers of 256 bits,
//! of which only hashes are kept. For each request, the core process checks the rights of the
//! caller. So a session ends if the grant of its caller is revoked.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ring::rand::{SecureRandom, SystemRandom};
use slackline_control::link::CallerIdentity;

use super::limits::Owner;
use super::tls::known_by;

/// Maximum number of unused codes of one principal. The same maximum applies to sessions. If there
/// are more, the oldest of the principal is dropped.
const MOST_EACH: usize = 8;

/// Maximum number of unused codes of all principals together. The same maximum applies to sessions.
const MOST: usize = 256;

/// Time limits of one-time codes and sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTimes {
    /// Time for which a code is valid after it was made.
    pub code: Duration,
    /// Length of a session. The session ends this length of time after its login.
    pub session: Duration,
}

impl SessionTimes {
    /// Time limits of the daemon: a code is valid for a minute, and a session lasts for eight
    /// hours.
    pub const USUAL: SessionTimes =
        SessionTimes { code: Duration::from_secs(60), session: Duration::from_secs(8 * 3600) };
}

/// Sessions and unused codes.
#[derive(Debug)]
pub(super) struct Sessions {
    times: SessionTimes,
    /// Unused codes by the hash of the code.
    codes: BTreeMap<String, IssuedCode>,
    /// Sessions by the hash of the cookie.
    sessions: BTreeMap<String, Session>,
}

/// Unused code: the principal for which it was made, and the time until which it is valid.
#[derive(Clone, Debug)]
struct IssuedCode {
    who: CallerIdentity,
    owner: Owner,
    until: Instant,
}

/// Session of a browser.
#[derive(Clone, Debug)]
pub(super) struct Session {
    /// Caller for whom the code of the session was made.
    pub(super) who: CallerIdentity,
    /// Principal whose limits apply to requests of the session.
    pub(super) owner: Owner,
    pub(super) until: Instant,
    /// Hash of the token that each request of the session must contain, in addition to the cookie.
    token: String,
    /// Key of the session: the hash of its cookie.
    pub(super) key: String,
}

/// Secrets of a new session.
#[derive(Debug)]
pub(super) struct Login {
    pub(super) cookie: String,
    pub(super) token: String,
    pub(super) session: Session,
}

/// Error: the kernel returned no random numbers.
#[derive(Debug)]
pub(super) struct NoRandom;

impl Sessions {
    pub(super) fn new(times: SessionTimes) -> Sessions {
        Sessions { times, codes: BTreeMap::new(), sessions: BTreeMap::new() }
    }

    /// Returns a code with which the caller can start one session, and the time for which the code
    /// is valid.
    pub(super) fn make_code(
        &mut self,
        (who, owner): (CallerIdentity, Owner),
        now: Instant,
    ) -> Result<(String, Duration), NoRandom> {
        let code = secret()?;
        self.drop_expired(now);
        make_room(&mut self.codes, &owner, |code| (&code.owner, code.until));
        let until = now + self.times.code;
        self.codes.insert(known_by(code.as_bytes()), IssuedCode { who, owner, until });
        Ok((code, self.times.code))
    }

    /// Starts a session with a one-time code, which becomes invalid. Returns `None` if the code is
    /// unknown, used or expired.
    pub(super) fn log_in(&mut self, code: &str, now: Instant) -> Result<Option<Login>, NoRandom> {
        self.drop_expired(now);
        let Some(issued) = self.codes.remove(&known_by(code.as_bytes())) else { return Ok(None) };
        let (cookie, token) = (secret()?, secret()?);
        make_room(&mut self.sessions, &issued.owner, |session| (&session.owner, session.until));
        let IssuedCode { who, owner, .. } = issued;
        let key = known_by(cookie.as_bytes());
        let until = now + self.times.session;
        let session = Session { who, owner, until, token: known_by(token.as_bytes()), key };
        self.sessions.insert(session.key.clone(), session.clone());
        Ok(Some(Login { cookie, token, session }))
    }

    /// Returns the session with this cookie and this token. `None` if one of them is wrong, or the
    /// session has ended.
    pub(super) fn find(&mut self, cookie: &str, token: &str, now: Instant) -> Option<Session> {
        self.drop_expired(now);
        let session = self.sessions.get(&known_by(cookie.as_bytes()))?;
        (session.token == known_by(token.as_bytes())).then(|| session.clone())
    }

    /// Returns true if the session with this key has not ended.
    pub(super) fn is_open(&mut self, key: &str, now: Instant) -> bool {
        self.drop_expired(now);
        self.sessions.contains_key(key)
    }

    /// Ends the session with this key, if there is one.
    pub(super) fn end(&mut self, key: &str) {
        self.sessions.remove(key);
    }

    /// Ends all sessions of a user of this host, and drops the user's unused codes. Remote clients
    /// need no such call: their sessions end because the core process no longer knows their
    /// credentials.
    pub(super) fn end_of_user(&mut self, user: u32) {
        let is_other =
            |who: &CallerIdentity| !matches!(who, CallerIdentity::User { uid, .. } if *uid == user);
        self.codes.retain(|_, code| is_other(&code.who));
        self.sessions.retain(|_, session| is_other(&session.who));
    }

    fn drop_expired(&mut self, now: Instant) {
        self.codes.retain(|_, code| now < code.until);
        self.sessions.retain(|_, session| now < session.until);
    }
}

/// Drops the oldest entry of a principal that has too many. If there are too many entries in total,
/// drops the oldest of all.
fn make_room<T>(
    all: &mut BTreeMap<String, T>,
    owner: &Owner,
    about: impl Fn(&T) -> (&Owner, Instant),
) {
    let oldest = |all: &BTreeMap<String, T>, owner: Option<&Owner>| {
        let of = all.iter().filter(|(_, it)| owner.is_none_or(|owner| about(it).0 == owner));
        of.min_by_key(|(_, it)| about(it).1).map(|(key, _)| key.clone())
    };
    while all.values().filter(|it| about(it).0 == owner).count() >= MOST_EACH
        && let Some(key) = oldest(all, Some(owner))
    {
        all.remove(&key);
    }
    while all.len() >= MOST
        && let Some(key) = oldest(all, None)
    {
        all.remove(&key);
    }
}

/// Returns a new random secret of 256 bits, in hexadecimal digits.
fn secret() -> Result<String, NoRandom> {
    let mut secret = [0; 32];
    SystemRandom::new().fill(&mut secret).map_err(|_| NoRandom)?;
    Ok(secret.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> (CallerIdentity, Owner) {
        (CallerIdentity::User { uid, gids: vec![7] }, Owner::User(uid))
    }

    fn logged_in(sessions: &mut Sessions, uid: u32, now: Instant) -> Login {
        let (code, _) = sessions.make_code(user(uid), now).unwrap();
        sessions.log_in(&code, now).unwrap().unwrap()
    }

    #[test]
    fn login_code_is_valid_only_once_and_for_one_minute() {
        let (mut sessions, now) = (Sessions::new(SessionTimes::USUAL), Instant::now());
        let (code, lasts) = sessions.make_code(user(5), now).unwrap();
        assert_eq!((code.len(), lasts), (64, Duration::from_secs(60)));
        assert!(sessions.log_in("another", now).unwrap().is_none());
        assert!(sessions.log_in(&code, now + lasts / 2).unwrap().is_some());
        assert!(sessions.log_in(&code, now + lasts / 2).unwrap().is_none(), "a code is used once");
        let (late, _) = sessions.make_code(user(5), now).unwrap();
        assert!(sessions.log_in(&late, now + lasts).unwrap().is_none(), "the code has expired");
    }

    #[test]
    fn browser_session_needs_cookie_and_token_and_lasts_eight_hours() {
        let (mut sessions, now) = (Sessions::new(SessionTimes::USUAL), Instant::now());
        let Login { cookie, token, session } = logged_in(&mut sessions, 5, now);
        let other = logged_in(&mut sessions, 6, now);
        assert_eq!(sessions.find(&cookie, &token, now).unwrap().owner, Owner::User(5));
        assert!(sessions.find(&cookie, &other.token, now).is_none());
        assert!(sessions.find(&cookie, "", now).is_none());
        assert!(sessions.find(&token, &token, now).is_none());
        let hours = |hours: u64| now + Duration::from_secs(hours * 3600);
        assert!(sessions.is_open(&session.key, hours(7)));
        assert!(sessions.find(&cookie, &token, hours(8)).is_none());
        let kept = format!("{sessions:?}");
        assert!(!kept.contains(&cookie) && !kept.contains(&token), "only hashes are kept");
    }

    #[test]
    fn browser_sessions_per_user_are_limited_and_end_on_revocation() {
        let (mut sessions, now) = (Sessions::new(SessionTimes::USUAL), Instant::now());
        let first = logged_in(&mut sessions, 5, now);
        for nth in 1..=MOST_EACH {
            logged_in(&mut sessions, 5, now + Duration::from_millis(nth as u64));
        }
        assert!(!sessions.is_open(&first.session.key, now), "the oldest session was dropped");
        let other = logged_in(&mut sessions, 6, now);
        let (code, _) = sessions.make_code(user(5), now).unwrap();
        sessions.end_of_user(5);
        assert_eq!(sessions.sessions.len(), 1);
        assert!(sessions.log_in(&code, now).unwrap().is_none());
        sessions.end(&other.session.key);
        for uid in 0..1_000 {
            logged_in(&mut sessions, uid, now);
        }
        assert!(sessions.sessions.len() <= MOST && sessions.codes.len() <= MOST);
    }
}
