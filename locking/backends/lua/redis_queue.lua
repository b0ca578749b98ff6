-- Shared by redis_take.lua and redis_release.lua, which are appended to it.
--
-- KEYS  1 lock   hash: owner, token, count, ttl (ms); expires with the grant
--       2 queue  list of waiters, "channel ttl floor owner"; the next to be served on the left
--       3 clock  the last token of this name; outlives the lock
-- ARGV  1 owner  who asks
--       2 floor  the token must be above it, in ticks of 16 us of the asker's clock
--       3 fair   '1': who waits longest is given the lock; '0': is only woken to try again

local lock, queue, clock = KEYS[1], KEYS[2], KEYS[3]
local asker, asked_floor, fair = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'

local function ticks()
  local now = redis.call('TIME')
  return math.floor((now[1] * 1000000 + now[2]) / 16)
end

-- A hybrid logical clock: above the last token, and above every clock that has a say.
local function next_token(floor)
  local last = tonumber(redis.call('GET', clock)) or 0
  return math.max(last + 1, ticks(), floor, asked_floor)
end

local function grant(owner, ttl, token)
  local text = string.format('%.0f', token)
  redis.call('SET', clock, text, 'PX', 86400000) -- a day
  redis.call('HSET', lock, 'owner', owner, 'token', text, 'count', 1, 'ttl', ttl)
  redis.call('PEXPIRE', lock, ttl)
end

-- Gives the free lock to the first waiter that is still connected: nobody listens to the channel
-- of one that was killed. Returns its owner, or false when nobody was given it.
-- LLEN before LPOP: the first write of a grant to the asker is one that a full Redis refuses.
local function pass_on()
  while redis.call('LLEN', queue) > 0 do
    local entry = redis.call('LPOP', queue)
    local channel, ttl, floor, owner = string.match(entry, '^(%S+) (%d+) (%d+) (.*)$')
    local token = fair and next_token(tonumber(floor)) or 0
    local message = string.format('%.0f %.0f %s', token, ticks(), owner)
    if redis.call('PUBLISH', channel, message) > 0 then
      if fair then
        grant(owner, ttl, token)
        return owner
      end
      return false
    end
  end
  return false
end
