PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE host (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    boot_id TEXT NOT NULL,
    clean INTEGER NOT NULL,
    seq INTEGER NOT NULL
) STRICT;
INSERT INTO host VALUES(1,'c73221df-0b50-4afa-acd7-2a24cf8f9934',1,3);
CREATE TABLE reservation (
    name TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    slice_ns INTEGER NOT NULL,
    period_ns INTEGER NOT NULL,
    exact INTEGER NOT NULL,
    vcpus INTEGER NOT NULL,
    binding TEXT NOT NULL,
    paused INTEGER NOT NULL,
    since INTEGER NOT NULL,
    revision INTEGER NOT NULL
, user INTEGER NOT NULL DEFAULT 0, phase_ns INTEGER, gang TEXT, strict INTEGER NOT NULL DEFAULT 0, by_use INTEGER NOT NULL DEFAULT 0) STRICT, WITHOUT ROWID;
INSERT INTO reservation VALUES('web','uid 0',3000000,10000000,1,1,'pid:29011',0,1,2,0,NULL,NULL,0,0);
CREATE TABLE identity (
    name TEXT PRIMARY KEY REFERENCES reservation (name) ON DELETE CASCADE,
    boot_id TEXT NOT NULL,
    pid INTEGER,
    started INTEGER,
    inode INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO identity VALUES('web','c73221df-0b50-4afa-acd7-2a24cf8f9934',29011,177622,93915);
CREATE TABLE event (
    seq INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    principal TEXT NOT NULL,
    verb TEXT NOT NULL,
    detail TEXT,
    name TEXT,
    before TEXT,
    after TEXT,
    late INTEGER NOT NULL
) STRICT;
INSERT INTO event VALUES(1,1795657228540733911,'uid 0','reserve',NULL,'web',NULL,'{"name":"web","owner":"uid 0","slice_ns":2000000,"period_ns":10000000,"exact":true,"vcpus":1,"binding":"pid:29011","user":0,"paused":false,"since":1,"revision":1,"identity":{"pid":29011,"started":177622,"inode":93915}}',0);
INSERT INTO event VALUES(2,1795657228672571926,'uid 0','change',NULL,'web','{"name":"web","owner":"uid 0","slice_ns":2000000,"period_ns":10000000,"exact":true,"vcpus":1,"binding":"pid:29011","user":0,"paused":false,"since":1,"revision":1,"identity":{"pid":29011,"started":177622,"inode":93915}}','{"name":"web","owner":"uid 0","slice_ns":3000000,"period_ns":10000000,"exact":true,"vcpus":1,"binding":"pid:29011","user":0,"paused":false,"since":1,"revision":2,"identity":{"pid":29011,"started":177622,"inode":93915}}',0);
INSERT INTO event VALUES(3,1795657228756566422,'uid 0','granted','uid 5001 is viewer',NULL,NULL,NULL,0);
CREATE TABLE answer (
    principal TEXT NOT NULL,
    key TEXT NOT NULL,
    asked TEXT NOT NULL,
    reply TEXT NOT NULL,
    is_new INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (principal, key)
) STRICT, WITHOUT ROWID;
INSERT INTO answer VALUES('uid 0','36ce754986dd1065e52af9acc49b715b','reserve web 2ms/10ms exact=true for pid:29011','{"name":"web","owner":"uid 0","slice_ns":2000000,"period_ns":10000000,"exact":true,"vcpus":1,"binding":"pid:29011","user":0,"paused":false,"since":1,"revision":1,"identity":{"pid":29011,"started":177622,"inode":93915}}',1,1795657228564435882);
INSERT INTO answer VALUES('uid 0','3bba570ecd2af881debec15092080cb6','change web 3ms/10ms','{"name":"web","owner":"uid 0","slice_ns":3000000,"period_ns":10000000,"exact":true,"vcpus":1,"binding":"pid:29011","user":0,"paused":false,"since":1,"revision":2,"identity":{"pid":29011,"started":177622,"inode":93915}}',0,1795657228676406585);
CREATE TABLE access (
    principal TEXT PRIMARY KEY,
    role TEXT NOT NULL,
    cpu_ppm INTEGER,
    machines INTEGER,
    users TEXT NOT NULL,
    token TEXT UNIQUE,
    certificate TEXT UNIQUE,
    made INTEGER NOT NULL,
    expires INTEGER
) STRICT, WITHOUT ROWID;
INSERT INTO access VALUES('uid 5001','viewer',NULL,NULL,'',NULL,NULL,1795657228752717242,NULL);
CREATE INDEX event_by_name ON event (name, seq);
CREATE INDEX answer_by_age ON answer (at);
COMMIT;
PRAGMA user_version = 6;
PRAGMA application_id = 1936485120;
