// 16-bit elements to blocks of MXINT mantissas with a shared exponent.
// Mantissas have 8 bits, or NARROW_WIDTH bits while is_narrow is high; their sign is extended.
// A block leaves when its last element has come, 1 mantissa per cycle. Latency BLOCK + 4 cycles from
// the first element of a block. Throughput 1 element per cycle. It never stalls.
`default_nettype none

module block_collector #(
    parameter int BLOCK        = 32,  // elements of a block, a power of two
    parameter int NARROW_WIDTH = 8    // bits of a narrow mantissa, 2 to 8
) (
    input  wire logic               clk,
    input  wire logic               rst,
    input  wire logic signed [15:0] element,
    input  wire logic               element_valid,
    input  wire logic               is_narrow,       // stable while is_busy
    output      logic signed [ 7:0] mantissa,
    output      logic        [ 3:0] exponent,
    output      logic               mantissa_valid,
    output      logic               is_busy
);

  localparam int INDEX = $clog2(BLOCK);

  logic signed [15:0] slots[2*BLOCK];
  logic [INDEX-1:0] fill_q, drain_q;
  logic fill_half_q, drain_half_q, draining_q, block_done;
  logic [15:0] magnitude, bits_q, bits, drain_bits_q;
  logic [3:0] place, exponent_1_q, exponent_2_q;
  logic signed [15:0] code_1_q;
  logic valid_1_q, valid_2_q, up_2;
  logic signed [15:0] floor_2_q;
  logic signed [7:0] low;
  logic is_top, is_bottom;
  logic [15:0] dropped_2_q;

  assign magnitude  = element[15] ? 16'd0 - element : element;
  assign bits       = magnitude | (fill_q == '0 ? '0 : bits_q);
  assign block_done = element_valid && fill_q == INDEX'(BLOCK - 1);

  always_comb begin  // the smallest exponent at which the largest magnitude fits a mantissa
    place = '0;
    if (is_narrow) begin
      for (int i = NARROW_WIDTH - 1; i < 16; i++) begin
        if (drain_bits_q[i]) place = 4'(i - NARROW_WIDTH + 2);
      end
    end else begin
      for (int i = 7; i < 16; i++) if (drain_bits_q[i]) place = 4'(i - 6);
    end
  end


  // a floor has the bits of a mantissa: `low` is the lowest one, and ~low the highest
  assign low       = is_narrow ? -8'sd1 <<< (NARROW_WIDTH - 1) : -8'sd128;
  assign up_2      = dropped_2_q[15] && (dropped_2_q[14:0] != '0 || floor_2_q[0]);
  assign is_top    = floor_2_q[7:0] == ~low && up_2;
  assign is_bottom = floor_2_q[7:0] == low && !up_2;

  always_ff @(posedge clk) begin
    if (element_valid) begin
      slots[{fill_half_q, fill_q}] <= element;
      bits_q <= bits;
      fill_q <= fill_q + 1'b1;
    end
    if (block_done) begin
      fill_half_q  <= !fill_half_q;
      drain_half_q <= fill_half_q;
      drain_bits_q <= bits;
    end
    if (draining_q) drain_q <= drain_q + 1'b1;
    draining_q     <= block_done || (draining_q && drain_q != INDEX'(BLOCK - 1));
    code_1_q       <= slots[{drain_half_q, drain_q}];
    exponent_1_q   <= place;
    valid_1_q      <= draining_q;
    floor_2_q      <= code_1_q >>> exponent_1_q;
    dropped_2_q    <= 16'({code_1_q, 16'd0} >> exponent_1_q);
    exponent_2_q   <= exponent_1_q;
    valid_2_q      <= valid_1_q;
    mantissa       <= is_top ? ~low : is_bottom ? low + 8'sd1 : floor_2_q[7:0] + 8'(up_2);
    exponent       <= exponent_2_q;
    mantissa_valid <= valid_2_q;
    if (rst) begin
      fill_q         <= '0;
      drain_q        <= '0;
      fill_half_q    <= 1'b0;
      draining_q     <= 1'b0;
      valid_1_q      <= 1'b0;
      valid_2_q      <= 1'b0;
      mantissa_valid <= 1'b0;
    end
  end

  wire logic unused_ok = &{1'b0, floor_2_q[15:8]};

  assign is_busy = fill_q != '0 || draining_q || valid_1_q || valid_2_q || mantissa_valid;

endmodule

`default_nettype wire
