-- Shared by redis_take.lua and redis_release.lua, which are appended to it.
--
-- KEYS  1 lock   hash: owner, token, count, ttl (ms); expires with the grant
--       2 queue  list of waiters, "channel ttl floor owner"; the first waiter on the left
--       3 clock  token of the last grant of any name; kept longer than the locks
--       4 late   process of the holder; exists only while there are waiters, and as long as they
-- ARGV  1 owner  the caller
--       2 floor  the token must be above it, in ticks of 16 us of the caller's clock
--       3 fair   '1': a release grants the lock to the first waiter; '0': it only wakes it

local MARGIN = 3600000 -- ms
local SLACK = 10000 -- ms; a waiter runs redis_take again soon after the present grant has ended
local lock, queue, clock, late = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local caller, caller_floor, fair = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'

local function ticks()
  local now = redis.call('TIME')
  return math.floor((now[1] * 1000000 + now[2]) / 16)
end

-- Host and number of an owner's process.
local function process_of(owner)
  return string.match(owner, '^[^:]*:?[^:]*')
end

-- A hybrid logical clock: above the last token, the server's clock and the callers' clocks. One for
-- all names, because a key for each name would outlast names that are used once.
local function next_token(floor)
  local last = tonumber(redis.call('GET', clock)) or 0
  return math.max(last + 1, ticks(), floor, caller_floor)
end

-- Keeps the waiters, and the holder's process, until they run redis_take again.
local function keep_queue(owner, left)
  redis.call('PEXPIRE', queue, left + SLACK)
  redis.call('SET', late, process_of(owner), 'PX', left + SLACK)
end

-- The last token is needed until the server's clock has passed it (clients' clocks may be ahead).
-- It is kept for MARGIN longer, because the server's clock may be set back after that.
local function grant(owner, ttl, token)
  local text = string.format('%.0f', token)
  local ahead = math.max(0, token - ticks()) * 0.016
  local life = string.format('%.0f', ahead + MARGIN)
  redis.call('SET', clock, text, 'PX', life)
  redis.call('HSET', lock, 'owner', owner, 'token', text, 'count', 1, 'ttl', ttl)
  redis.call('PEXPIRE', lock, ttl)
end

-- Grants the free lock to the first waiter that is still connected (the channel of a killed one has
-- no subscriber). Returns its owner, or false when no waiter was granted the lock.
-- If the last grant expired, its process may be stopped together with its waiters: these are woken
-- to try again, so those that run join the queue behind the others.
-- LLEN before LPOP: the first write of a grant to the caller is one that a full Redis refuses.
local function grant_next(released)
  local stopped = not released and redis.call('GET', late)
  if stopped == process_of(caller) then
    stopped = nil
  end
  while redis.call('LLEN', queue) > 0 do
    local entry = redis.call('LPOP', queue)
    local channel, ttl, floor, owner = string.match(entry, '^(%S+) (%d+) (%d+) (.*)$')
    local is_late = process_of(owner) == stopped
    local token = fair and not is_late and next_token(tonumber(floor)) or 0
    local message = string.format('%.0f %.0f %s', token, ticks(), owner)
    if redis.call('PUBLISH', channel, message) > 0 and not is_late then
      if fair then
        grant(owner, ttl, token)
        if redis.call('LLEN', queue) > 0 then
          keep_queue(owner, ttl)
        end
        return owner
      end
      return false
    end
  end
  return false
end
