-- Moves admission forward, gives a customer a place if asked to, and returns the room's state.
--
-- KEYS  1 state   hash (see waiting_room/store.py)
--       2 places  hash    customer -> numbers in the order of arrival, from 1; the last one holds
--       3 order   string  of a drawn lottery: the position of each number, 8 hex digits each
--       4 turns   list    for each second that admitted: the second, the highest position then
--       5 tried   bitmap  of the positions that have tried to buy in their turn
-- ARGV  1 opening and 2 end of the sale, in ms; 3 units left; 4 seconds of a turn
--       5 customer, or ''; 6 'join' to give the customer a place, 'buy' to note a try to buy, or ''
-- Returns nil if Redis has no such state

local state, places, order, turns, tried = unpack(KEYS)
local opens, closes, left = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local turn, customer, verb = tonumber(ARGV[4]), ARGV[5], ARGV[6]
local AHEAD = 2 -- turns at a time for each unit that is left; one after the first sell-out
local MAX_GAP = 10000 -- ms, twice the pause of waiting_room.tasks.admit; admission does not catch
-- up with a longer interruption in a burst
local PERSON = 60000 -- credit of one admission: people per minute x ms
local KEEP = 7 * 24 * 3600 * 1000 -- ms for which the state is kept after the end of the sale

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local second = tonumber(clock[1])

local numbers = { 'joined', 'serving', 'lapsed', 'due', 'second', 'tries', 'before', 'credit',
  'last', 'cutoff', 'drawn', 'inlet', 'expires' }
local values = redis.call('HMGET', state, unpack(numbers))
local room = {}
for i, name in ipairs(numbers) do
  room[name] = values[i] and tonumber(values[i])
end
local mode, paused, sold_out, message, message_zh, reason, changed = unpack(redis.call('HMGET',
  state, 'mode', 'paused', 'sold_out', 'message', 'message_zh', 'reason', 'changed'))
if not mode then
  return false
end
for _, name in ipairs({ 'lapsed', 'due', 'second', 'tries', 'before' }) do
  room[name] = room[name] or 0
end

-- The list at the opening: those who are here now, but not the customer of this call.
if not room.cutoff and now >= opens then
  room.cutoff = room.joined
  redis.call('HSET', state, 'cutoff', room.cutoff)
end

-- Returns the position of a number, false until the lottery is drawn.
local function position_of(number)
  if mode == 'lottery' and not room.drawn and number <= (room.cutoff or number) then
    return false
  elseif mode == 'lottery' and room.drawn and number <= room.cutoff then
    return tonumber(redis.call('GETRANGE', order, 8 * number - 8, 8 * number - 1), 16)
  end
  return number
end

local had = customer ~= '' and redis.call('HGET', places, customer)
local number = had and tonumber(had:match('%d+$'))
local position = number and position_of(number)
local is_over = position and position <= room.lapsed
if verb == 'join' and now < closes and (not number or is_over) then
  number = room.joined + 1
  room.joined = number
  position = position_of(number)
  redis.call('HSET', places, customer, (had and had .. ' ' or '') .. number)
  redis.call('HSET', state, 'joined', number)
  if number == 1 then
    room.expires = nil
  end
end
if room.expires ~= closes then
  redis.call('HSET', state, 'expires', closes)
  for _, key in ipairs(KEYS) do
    redis.call('PEXPIREAT', key, closes + KEEP)
  end
end

local is_open = now >= opens and now < closes
if is_open and left <= 0 and not sold_out then
  -- Some tries of this time were in vain. The turns count as unused until they are over.
  sold_out = '1'
  redis.call('HSET', state, 'sold_out', sold_out)
  redis.call('DEL', tried)
end
if second ~= room.second then
  room.before = second == room.second + 1 and room.tries or 0
  room.tries = 0
end
local first = redis.call('LINDEX', turns, 0)
if second < room.second or (not first and room.due < room.serving) then
  -- The clock went back, or the list is new or was lost: the time of all turns begins again.
  redis.call('DEL', turns)
  redis.call('RPUSH', turns, second .. ' ' .. room.serving)
end

-- Returns the turns that may begin. A unit that was bought is missing in `left` a second later.
local function free()
  local bought = redis.call('BITCOUNT', tried, room.lapsed + 1, room.serving, 'BIT')
  local unused = room.serving - room.lapsed - math.max(0, bought - room.tries - room.before)
  return math.max(0, (sold_out and 1 or AHEAD) * left - unused)
end

local is_full = false
if is_open and paused ~= '1' and (mode == 'arrival' or room.drawn) then
  while first and first:match('^%d+') + 1 + turn <= second do
    room.due = tonumber(first:match('%d+$'))
    redis.call('LPOP', turns)
    first = redis.call('LINDEX', turns, 0)
  end
  if room.joined > room.serving and free() == 0 then
    room.lapsed = room.due -- a turn is over once its time is and someone waits for its unit
  end
  local elapsed = math.min(now - math.max(room.last, opens), MAX_GAP)
  room.credit = room.credit + math.max(elapsed, 0) * room.inlet
  local waiting, places_free = room.joined - room.serving, free()
  local most = math.min(waiting, places_free)
  local admitted = math.min(math.floor(room.credit / PERSON), most)
  room.credit = room.credit - admitted * PERSON
  if admitted == most then
    -- While no one can be admitted, the admissions of one second are saved up.
    room.credit = math.min(room.credit, math.max(room.inlet * 1000, PERSON))
    is_full = waiting > places_free
  end
  if admitted > 0 then
    room.serving = room.serving + admitted
    local last = redis.call('LINDEX', turns, -1)
    if last and tonumber(last:match('^%d+')) == second then
      redis.call('RPOP', turns)
    end
    redis.call('RPUSH', turns, second .. ' ' .. room.serving)
    redis.call('PEXPIREAT', turns, closes + KEEP)
  end
end

local lasts = false
if position and position > room.lapsed and position <= room.serving then
  lasts = 0
  for _, one in ipairs(position > room.due and redis.call('LRANGE', turns, 0, -1) or {}) do
    if position <= tonumber(one:match('%d+$')) then
      lasts = math.max(0, (one:match('^%d+') + 1 + turn) * 1000 - now)
      break
    end
  end
  if verb == 'buy' and left > 0 and redis.call('SETBIT', tried, position, 1) == 0 then
    room.tries = room.tries + 1
    redis.call('PEXPIREAT', tried, closes + KEEP)
  end
end
redis.call('HSET', state, 'last', now, 'second', second, 'serving', room.serving, 'lapsed',
  room.lapsed, 'due', room.due, 'tries', room.tries, 'before', room.before, 'credit', room.credit)

return { now, mode, room.joined, room.serving, room.lapsed, is_full and 1 or 0, room.inlet,
  paused == '1' and 1 or 0, room.cutoff or false, room.drawn or false, message or '',
  message_zh or '', reason or '', tonumber(changed or 0), number or false, position or false, lasts }
