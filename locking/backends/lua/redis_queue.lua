-- The first part of redis_take.lua, redis_release.lua and redis_take_over.lua, which are appended to
-- it: they use its functions and the locals lock, queue, clock and caller. A token is in ticks here;
-- the caller appends a hash of the owner to make it the fencing token (full_token in scripts.py).
--
-- KEYS  1 lock   hash: owner, token, count, ttl (ms); expires with the grant
--       2 queue  list of entries "channel ttl floor owner": on the left that of the present or last
--                holder, then the waiters in their order
--       3 clock  token of the last grant of any name; kept longer than the locks
-- ARGV  1 owner  the caller
--       2 floor  the token must be above it, in ticks of 16 us of the caller's clock

local MARGIN = 3600000 -- ms
local lock, queue, clock = KEYS[1], KEYS[2], KEYS[3]
local caller, caller_floor = ARGV[1], tonumber(ARGV[2])

local now
local function ticks()
  if not now then
    local time = redis.call('TIME')
    now = math.floor((time[1] * 1000000 + time[2]) / 16)
  end
  return now
end

-- The entry of a holder that did not wait.
local function unqueued(owner)
  return '- 0 0 ' .. owner
end

-- Returns the process of an owner, "host:number", and its host.
local function origin_of(owner)
  return string.match(owner, '^[^:]*:?[^:]*'), string.match(owner, '^[^:]*')
end

local stopped = {} -- processes and hosts whose waiters may be unable to use a grant

-- Notes that a grant expired: the holder's process may be stopped, and its waiters with it. If the
-- channel on which the holder waited still has a subscriber, its machine may be lost, whose
-- connections stay open here for minutes. The caller's own process and machine do run.
local function suspect(owner, channel)
  local process, host = origin_of(owner)
  stopped[process] = true
  if channel and channel ~= '-' and redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0 then
    stopped[host] = true
  end
  process, host = origin_of(caller)
  stopped[process], stopped[host] = nil, nil
end

local function is_stopped(owner)
  local process, host = origin_of(owner)
  return stopped[process] or stopped[host]
end

-- A hybrid logical clock: above the last token, the server's clock and the callers' clocks. One for
-- all names, because a key for each name would outlast names that are used once.
local function next_token(floor)
  local last = tonumber(redis.call('GET', clock)) or 0
  return math.max(last + 1, ticks(), floor, caller_floor)
end

-- The last token is needed until the server's clock has passed it (clients' clocks may be ahead).
-- It is kept for MARGIN longer, because the server's clock may be set back after that.
local function remember(token)
  local ahead = math.ceil(math.max(0, token - ticks()) * 0.016)
  local text = string.format('%.0f', token)
  redis.call('SET', clock, text, 'PX', ahead + MARGIN)
  return text
end

local function grant(owner, ttl, token)
  local text = remember(token)
  redis.call('HSET', lock, 'owner', owner, 'token', text, 'count', '1', 'ttl', ttl)
  redis.call('PEXPIRE', lock, ttl)
end

-- Grants the free lock to the first waiter that is still connected (the channel of a killed one has
-- no subscriber). Returns false if there is no such waiter.
-- If the last grant expired, waiters that may be stopped too are only woken to try again, so those
-- that run join the queue behind the others.
-- LINDEX before LPOP: the first write of a grant to the caller is one that a full Redis refuses.
local function grant_next(released)
  local entry = redis.call('LINDEX', queue, 1)
  if entry and not released then
    local channel, owner = string.match(redis.call('LINDEX', queue, 0), '^(%S+) %d+ %d+ (.*)$')
    suspect(owner, channel)
  end
  while entry do
    redis.call('LPOP', queue)
    local channel, ttl, floor, owner = string.match(entry, '^(%S+) (%d+) (%d+) (.*)$')
    local is_late = is_stopped(owner)
    local token = is_late and 0 or next_token(tonumber(floor))
    local message = string.format('%.0f %.0f %s', token, ticks(), owner)
    if redis.call('PUBLISH', channel, message) > 0 and not is_late then
      grant(owner, ttl, token)
      return true
    end
    entry = redis.call('LINDEX', queue, 1)
  end
  return false
end
