-- Shared by redis_take.lua and redis_release.lua, which are appended to it.
--
-- KEYS  1 lock   hash: owner, token, count, ttl (ms); expires with the grant
--       2 queue  list of waiters, "channel ttl floor owner"; the next to be served on the left
--       3 clock  "token process": the last grant's, of this name; outlives the lock
-- ARGV  1 owner  who asks
--       2 floor  the token must be above it, in ticks of 16 us of the asker's clock
--       3 fair   '1': who waits longest is given the lock; '0': is only woken to try again

local MARGIN = 3600000 -- ms
local lock, queue, clock = KEYS[1], KEYS[2], KEYS[3]
local asker, asked_floor, fair = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'

local function ticks()
  local now = redis.call('TIME')
  return math.floor((now[1] * 1000000 + now[2]) / 16)
end

-- The token and the process of the last grant.
local function last()
  local token, process = string.match(redis.call('GET', clock) or '', '^(%d+) (.*)$')
  return tonumber(token) or 0, process
end

-- Host and number of an owner's process.
local function process_of(owner)
  return string.match(owner, '^[^:]*:?[^:]*')
end

-- A hybrid logical clock: above the last token, and above every clock that has a say.
local function next_token(floor)
  return math.max(last() + 1, ticks(), floor, asked_floor)
end

-- The clock is needed until Redis' own has passed the token, which clients' clocks may have put
-- ahead of it: it is kept for MARGIN longer, lest Redis' own be set back after that.
local function grant(owner, ttl, token)
  local text = string.format('%.0f', token)
  local ahead = math.max(0, token - ticks()) * 0.016
  local life = string.format('%.0f', ahead + MARGIN)
  redis.call('SET', clock, text .. ' ' .. process_of(owner), 'PX', life)
  redis.call('HSET', lock, 'owner', owner, 'token', text, 'count', 1, 'ttl', ttl)
  redis.call('PEXPIRE', lock, ttl)
end

-- Gives the free lock to the first waiter that is still connected: nobody listens to the channel
-- of one that was killed. Returns its owner, or false when nobody was given it.
-- When the last grant ended unreleased its process may be stopped, and its waiters with it: they
-- are told to ask again, which puts those that can behind the others.
-- LLEN before LPOP: the first write of a grant to the asker is one that a full Redis refuses.
local function pass_on(released)
  local late = not released and select(2, last())
  if late == process_of(asker) then
    late = nil
  end
  while redis.call('LLEN', queue) > 0 do
    local entry = redis.call('LPOP', queue)
    local channel, ttl, floor, owner = string.match(entry, '^(%S+) (%d+) (%d+) (.*)$')
    local is_late = process_of(owner) == late
    local token = fair and not is_late and next_token(tonumber(floor)) or 0
    local message = string.format('%.0f %.0f %s', token, ticks(), owner)
    if redis.call('PUBLISH', channel, message) > 0 and not is_late then
      if fair then
        grant(owner, ttl, token)
        return owner
      end
      return false
    end
  end
  return false
end
